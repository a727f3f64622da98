package spc

import (
	"bytes"
	"reflect"
	"testing"
)

// FuzzParse feeds every parser of the package; none may panic, and what parses
// must come out the same again where the format has one form only.
func FuzzParse(f *testing.F) {
	s := Sense{Key: KeyMiscompare, ASC: ASCMiscompare, InfoValid: true, Info: 7}
	f.Add(s.AppendFixed(nil))
	f.Add(s.AppendDescriptor(nil))
	f.Add(AppendUnmapList(nil, []Range{{1, 2}}))
	f.Add(AppendTransportID(nil, "iqn.1994-05.com.example:host,i,0x00023d000001"))
	p := PopulateToken{Ranges: []Range{{1, 2}}}
	f.Add(p.Append(nil))
	w := WriteUsingToken{Token: make([]byte, RODTokenLen), Ranges: []Range{{1, 2}}}
	f.Add(w.Append(nil))
	r := RODInfo{Status: CopyDone, Sense: []byte{1, 2}, Token: make([]byte, RODTokenLen)}
	f.Add(r.Append(nil))
	q := InquiryData{Vendor: "a", Product: "b", Revision: "c"}
	f.Add(q.AppendInquiryData(nil))
	fl := FormatList{Flags: FormatFOV | FormatIP, PatternType: 1, Pattern: []byte{1, 2, 3}}
	f.Add(fl.Append(nil, false))
	f.Add(fl.Append(nil, true))
	f.Add((&CopySegment{Type: CopyBlockOffset}).Append(nil))
	fs := FullStatus{Key: 1, Holder: true, Port: "iqn.1994-05.com.example:host"}
	f.Add(fs.Append([]byte{0, 0, 0, 1, 0, 0, 0, 60}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if list, err := ParseFullStatus(b); err == nil && len(list)*24 > len(b) {
			t.Errorf("%d registrants in %d bytes", len(list), len(b))
		}
		if s, err := ParseSense(b); err == nil {
			_ = s.String()
			if got, err := ParseSense(s.AppendDescriptor(nil)); err != nil || got != s {
				t.Errorf("sense %+v became %+v, %v", s, got, err)
			}
		}
		if n, err := UnmapDescriptors(b); err == nil {
			for i := range n {
				UnmapDescriptor(b, i)
			}
		}
		if port, n, err := ParseTransportID(b); err == nil {
			if again, _, err := ParseTransportID(AppendTransportID(nil, port)); err != nil || again != port || n > len(b) {
				t.Errorf("TransportID %q became %q, %v", port, again, err)
			}
		}
		if p, err := ParsePersistOut(b); err == nil && len(b) == PersistOutLen {
			if got, _ := ParsePersistOut(p.Append(nil)); got != p {
				t.Errorf("%+v became %+v", p, got)
			}
		}
		if m, err := ParseRegisterMove(b); err == nil && !bytes.Equal(m.Append(nil)[18:], b[18:]) {
			t.Errorf("REGISTER AND MOVE % x", b)
		}
		if x, n, known, err := ParseCopySegment(b); err == nil && known {
			if got, _, _, _ := ParseCopySegment(x.Append(nil)); got != x || n > len(b) {
				t.Errorf("%+v became %+v", x, got)
			}
		}
		for _, long := range []bool{false, true} {
			if x, err := ParseFormatList(b, long); err == nil {
				got, err := ParseFormatList(x.Append(nil, long), long)
				same := bytes.Equal(got.Pattern, x.Pattern)
				got.Pattern, x.Pattern = nil, nil
				if err != nil || !same || !reflect.DeepEqual(got, x) {
					t.Errorf("format list %+v became %+v, %v", x, got, err)
				}
			}
		}
		ParseCopyHeader(b)
		ParsePopulateToken(b)
		ParseWriteUsingToken(b)
		ParseRODInfo(b)
		ParseRODToken(b)
		ParseInquiryData(b)
		ParseBlockLimits(b)
		ParseBlockDevice(b)
		ParseProvisioning(b)
		ParseCapacity10(b)
		ParseCapacity16(b)
		ParseDesignators(b)
		ParseLUNList(b)
		ParseLBAStatus(b)
		ParseReadKeys(b)
		ParseReadReservation(b)
		for _, page := range []byte{VPDBlockLimits, VPDSerial} {
			VPDPayload(b, page)
		}
		if n := CDBLen(b); n > 0 && n <= len(b) {
			ParseIO(b[:n])
			ServiceAction(b[:n])
		}
	})
}
