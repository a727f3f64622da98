package iscsi

import (
	"fmt"
	"strings"
	"testing"
)

// strict are settings in which this side's limit lies between offers below and
// above it.
func strict() Settings {
	s := DefaultSettings()
	s.HeaderDigest = []Digest{DigestCRC32C, DigestNone}
	s.DataDigest = []Digest{DigestNone}
	s.MaxConnections = 4
	s.InitialR2T = true
	s.ImmediateData = false
	s.MaxRecvDataSegmentLength = 65536
	s.MaxBurstLength = 131072
	s.FirstBurstLength = 32768
	s.DefaultTime2Wait = 5
	s.DefaultTime2Retain = 60
	s.MaxOutstandingR2T = 8
	s.DataPDUInOrder = false
	s.DataSequenceInOrder = true
	s.ErrorRecoveryLevel = 1
	s.TaskReporting = []TaskReporting{ReportFastAbort, ReportRFC3720}
	s.ProtocolLevel = 2
	s.InitiatorRecvDataSegmentLength = 16384
	s.TargetRecvDataSegmentLength = 8192
	return s
}

// Each key at the target: what an offer is answered with (RFC 7143 §13, RFC 7144
// §3, RFC 7145 §6).
func TestTargetAnswers(t *testing.T) {
	type row struct{ offer, answer string } // answer "": none
	for key, rows := range map[string][]row{
		"HeaderDigest":        {{"None", "None"}, {"CRC32C", "CRC32C"}, {"None,CRC32C", "None"}, {"CRC32C,None", "CRC32C"}, {"X-md5,None", "None"}, {"X-md5", "Reject"}, {"", "Reject"}},
		"DataDigest":          {{"CRC32C,None", "None"}, {"CRC32C", "Reject"}},
		"MaxConnections":      {{"1", "1"}, {"4", "4"}, {"8", "4"}, {"0x10", "4"}, {"0", "Reject"}, {"65536", "Reject"}, {"x", "Reject"}, {"-1", "Reject"}, {"4294967297", "Reject"}},
		"InitialR2T":          {{"Yes", "Yes"}, {"No", "Yes"}, {"yes", "Reject"}},
		"ImmediateData":       {{"Yes", "No"}, {"No", "No"}, {"1", "Reject"}},
		"MaxBurstLength":      {{"512", "512"}, {"131072", "131072"}, {"16776192", "131072"}, {"511", "Reject"}, {"16777216", "Reject"}},
		"FirstBurstLength":    {{"512", "512"}, {"262144", "32768"}},
		"DefaultTime2Wait":    {{"0", "5"}, {"7", "7"}, {"3601", "Reject"}},
		"DefaultTime2Retain":  {{"0", "0"}, {"3600", "60"}},
		"MaxOutstandingR2T":   {{"1", "1"}, {"100", "8"}, {"0", "Reject"}},
		"DataPDUInOrder":      {{"Yes", "Yes"}, {"No", "No"}},
		"DataSequenceInOrder": {{"Yes", "Yes"}, {"No", "Yes"}},
		"ErrorRecoveryLevel":  {{"0", "0"}, {"2", "1"}, {"3", "Reject"}},
		"TaskReporting":       {{"FastAbort,ResponseFence", "FastAbort"}, {"ResponseFence", "Reject"}, {"RFC3720", "RFC3720"}},
		"iSCSIProtocolLevel":  {{"1", "1"}, {"2", "2"}, {"31", "2"}, {"32", "Reject"}},
		"IFMarker":            {{"Yes", "No"}, {"No", "No"}},
		"OFMarker":            {{"Yes", "No"}, {"No", "No"}},
		"IFMarkInt":           {{"2048~8192", "Reject"}},
		"OFMarkInt":           {{"2048", "Reject"}},

		"MaxRecvDataSegmentLength": {{"512", ""}, {"262144", ""}, {"100", "Reject"}, {"16777216", "Reject"}},
		"InitiatorAlias":           {{"me", ""}},
		"SessionType":              {{"Normal", ""}},
		"TargetName":               {{"iqn.x", ""}},
		"TargetAlias":              {{"x", "Reject"}}, // for the target to send
		"TargetPortalGroupTag":     {{"1", "Reject"}},
		"TargetAddress":            {{"1.2.3.4", "Reject"}},
		"SendTargets":              {{"All", "Reject"}}, // full feature phase only
		"X-com.example.key":        {{"1", "NotUnderstood"}, {"NotUnderstood", ""}, {"Reject", ""}},
		"Foo":                      {{"bar", "NotUnderstood"}},

		// Without RDMA the keys of iSER mean nothing.
		"RDMAExtensions":                   {{"Yes", "No"}, {"No", "No"}},
		"InitiatorRecvDataSegmentLength":   {{"8192", "Irrelevant"}},
		"TargetRecvDataSegmentLength":      {{"8192", "Irrelevant"}},
		"MaxOutstandingUnexpectedPDUs":     {{"8", ""}, {"0", ""}, {"1", "Reject"}},
		"MaxAHSLength":                     {{"256", ""}, {"1", "Reject"}},
		"TaggedBufferForSolicitedDataOnly": {{"Yes", ""}, {"maybe", "Reject"}},
		"iSERHelloRequired":                {{"No", ""}},
	} {
		for _, r := range rows {
			n := NewNegotiation(RoleTarget, strict(), KeyProfile{}, true)
			got, err := n.Receive(nil, []KeyValue{{key, r.offer}}, StageOperational)
			want := ""
			if r.answer != "" {
				want = key + "=" + r.answer + "\x00"
			}
			if err != nil || string(got) != want {
				t.Errorf("%s=%s is answered %q (%v), want %q", key, r.offer, got, err, want)
			}
		}
	}
}

// The same keys on an RDMA connection.
func TestTargetAnswersOverRDMA(t *testing.T) {
	s := strict()
	s.HeaderDigest = []Digest{DigestCRC32C} // must not matter
	n := NewNegotiation(RoleTarget, s, KeyProfile{RDMA: RDMARequired, NoDigests: true, RecvDataSegmentLength: 4096, SendDataSegmentLength: 0}, true)
	// RDMAExtensions counts for the whole text, wherever it stands.
	text := "HeaderDigest=CRC32C,None\x00InitiatorRecvDataSegmentLength=262144\x00TargetRecvDataSegmentLength=262144\x00" +
		"ErrorRecoveryLevel=2\x00MaxOutstandingUnexpectedPDUs=9\x00RDMAExtensions=Yes\x00"
	kvs, err := ParseText([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.Receive(nil, kvs, StageOperational)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"RDMAExtensions=Yes\x00", "HeaderDigest=None\x00", "InitiatorRecvDataSegmentLength=16384\x00", "TargetRecvDataSegmentLength=4096\x00", "ErrorRecoveryLevel=0\x00"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("answer %q lacks %q", got, want)
		}
	}
	p := n.Params()
	if !p.RDMAExtensions || p.MaxXmitDataSegmentLength != 16384 || p.MaxRecvDataSegmentLength != 4096 || p.MaxOutstandingUnexpectedPDUs != 9 {
		t.Errorf("%+v", p)
	}
	if out, _ := n.Demand(nil); strings.Contains(string(out), "MaxRecvDataSegmentLength") {
		t.Errorf("the target brings up %q", out)
	}
}

// In a discovery session operational keys are Irrelevant.
func TestDiscoveryIrrelevant(t *testing.T) {
	for _, key := range []string{"MaxConnections=1", "InitialR2T=Yes", "ImmediateData=Yes", "MaxBurstLength=512", "FirstBurstLength=512",
		"MaxOutstandingR2T=1", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes", "TaskReporting=RFC3720", "iSCSIProtocolLevel=1", "RDMAExtensions=Yes"} {
		n := NewNegotiation(RoleTarget, strict(), KeyProfile{RDMA: RDMARequired}, true)
		k, v, _ := strings.Cut(key, "=")
		got, err := n.Receive(nil, []KeyValue{{"SessionType", "Discovery"}, {k, v}}, StageOperational)
		if err != nil || string(got) != k+"=Irrelevant\x00" {
			t.Errorf("%s is answered %q, %v", key, got, err)
		}
	}
}

// Keys of the leading login are refused on a further connection.
func TestNotLeading(t *testing.T) {
	n := NewNegotiation(RoleTarget, strict(), KeyProfile{}, false)
	got, err := n.Receive(nil, []KeyValue{{"MaxConnections", "2"}, {"HeaderDigest", "None"}}, StageOperational)
	if err != nil || string(got) != "MaxConnections=Reject\x00HeaderDigest=None\x00" {
		t.Errorf("%q, %v", got, err)
	}
	if out := string(NewNegotiation(RoleInitiator, strict(), KeyProfile{}, false).Offer(nil)); strings.Contains(out, "MaxConnections") || !strings.Contains(out, "HeaderDigest") {
		t.Errorf("offers %q", out)
	}
}

// What belongs to another stage is rejected, and not settled by that.
func TestStages(t *testing.T) {
	n := NewNegotiation(RoleTarget, strict(), KeyProfile{}, true)
	got, err := n.Receive(nil, []KeyValue{{"MaxBurstLength", "512"}, {"InitiatorName", "iqn.x"}}, StageSecurity)
	if err != nil || string(got) != "MaxBurstLength=Reject\x00" {
		t.Fatalf("%q, %v", got, err)
	}
	if got, err = n.Receive(nil, []KeyValue{{"MaxBurstLength", "512"}}, StageOperational); err != nil || string(got) != "MaxBurstLength=512\x00" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err = n.Receive(nil, []KeyValue{{"MaxBurstLength", "512"}}, StageOperational); status(err) != LoginInitiatorFailure {
		t.Fatalf("renegotiation: %v", err)
	}
	// Full feature phase: MaxRecvDataSegmentLength may change, as often as one likes.
	for _, v := range []string{"1024", "2048"} {
		if got, err = n.Receive(nil, []KeyValue{{"MaxRecvDataSegmentLength", v}}, StageFullFeature); err != nil || len(got) != 0 {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if n.PeerMaxRecv() != 2048 {
		t.Errorf("PeerMaxRecv %d", n.PeerMaxRecv())
	}
	if got, _ = n.Receive(nil, []KeyValue{{"ImmediateData", "No"}}, StageFullFeature); string(got) != "ImmediateData=Reject\x00" {
		t.Errorf("%q", got)
	}
}

func TestBurstLengthsTogether(t *testing.T) {
	n := NewNegotiation(RoleTarget, DefaultSettings(), KeyProfile{}, true)
	// FirstBurstLength never exceeds MaxBurstLength, in whatever order they come.
	got, err := n.Receive(nil, []KeyValue{{"FirstBurstLength", "65536"}, {"MaxBurstLength", "16384"}}, StageOperational)
	if err != nil || string(got) != "MaxBurstLength=16384\x00FirstBurstLength=16384\x00" {
		t.Fatalf("%q, %v", got, err)
	}
	n = NewNegotiation(RoleTarget, DefaultSettings(), KeyProfile{}, true)
	if _, err := n.Receive(nil, []KeyValue{{"FirstBurstLength", "65536"}}, StageOperational); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Receive(nil, []KeyValue{{"MaxBurstLength", "16384"}}, StageOperational); status(err) != LoginInitiatorFailure {
		t.Fatalf("%v", err)
	}
	// With only MaxBurstLength given the target asks for the other.
	n = NewNegotiation(RoleTarget, DefaultSettings(), KeyProfile{}, true)
	if _, err := n.Receive(nil, []KeyValue{{"MaxBurstLength", "16384"}}, StageOperational); err != nil {
		t.Fatal(err)
	}
	if out, ask := n.Demand(nil); !ask || !strings.Contains(string(out), "FirstBurstLength=16384\x00") {
		t.Errorf("%q %v", out, ask)
	}
}

// The initiator checks that answers follow the rules.
func TestInitiatorChecksAnswers(t *testing.T) {
	base := strict()
	base.HeaderDigest = []Digest{DigestNone}
	for _, c := range []struct {
		answer string
		good   bool
	}{
		{"MaxBurstLength=512", true}, {"MaxBurstLength=131072", true}, {"MaxBurstLength=131073", false}, {"MaxBurstLength=x", false},
		{"DefaultTime2Wait=5", true}, {"DefaultTime2Wait=9", true}, {"DefaultTime2Wait=4", false},
		{"InitialR2T=Yes", true}, {"InitialR2T=No", false},
		{"ImmediateData=No", true}, {"ImmediateData=Yes", false},
		{"HeaderDigest=None", true}, {"HeaderDigest=CRC32C", false}, {"HeaderDigest=Reject", true},
		{"MaxBurstLength=Reject", false}, // the default is more than we want
		{"MaxConnections=NotUnderstood", true},
		{"InitialR2T=Irrelevant", true},
		{"ImmediateData=Reject", false}, // the default is Yes
		{"TaskReporting=ResponseFence", false},
		{"TaskReporting=FastAbort", true},
		{"iSCSIProtocolLevel=NotUnderstood", true},
		{"MaxRecvDataSegmentLength=1000", true},
		{"MaxRecvDataSegmentLength=NotUnderstood", true},
		{"TargetPortalGroupTag=1", true},
	} {
		n := NewNegotiation(RoleInitiator, base, KeyProfile{}, true)
		n.Offer(nil)
		k, v, _ := strings.Cut(c.answer, "=")
		out, err := n.Receive(nil, []KeyValue{{k, v}}, StageOperational)
		if (err == nil) != c.good || len(out) != 0 {
			t.Errorf("%s: %v, replies %q", c.answer, err, out)
		}
	}
}

// Every key of the table is known by its name, has a sensible default and is
// handled somewhere above.
func TestTable(t *testing.T) {
	for k := range numKeys {
		r := &rules[k]
		if r.name == "" || keyByName[r.name] != k || k.String() != r.name {
			t.Errorf("key %d is %q", k, r.name)
		}
		switch r.kind {
		case kindMin, kindMax, kindNumber:
			if r.hi == 0 || r.def > r.hi || r.def < r.lo && !(r.zero && r.def == 0) {
				t.Errorf("%s: default %d outside %d to %d", r.name, r.def, r.lo, r.hi)
			}
		case kindList:
			if len(r.list) == 0 {
				t.Errorf("%s: no values", r.name)
			}
		}
	}
	if numKeys.String() != "unknown key" {
		t.Error("String of an unknown key")
	}
}

func TestText(t *testing.T) {
	long := strings.Repeat("v", MaxValueLen)
	for _, c := range []struct {
		text string
		n    int // -1: malformed
	}{
		{"", 0}, {"\x00\x00", 0}, {"a=b\x00", 1}, {"a=b", 1}, {"a=\x00b=c=d\x00", 2}, {"a=b\x00\x00\x00", 1},
		{"=b\x00", -1}, {"ab\x00", -1}, {"a b=c\x00", -1}, {strings.Repeat("k", 64) + "=v\x00", -1}, {strings.Repeat("k", 63) + "=v\x00", 1},
		{"k=" + long + "\x00", 1}, {"k=" + long + "v\x00", -1}, {"CHAP_R=" + long + long + "\x00", 1}, {"CHAP_R=" + strings.Repeat("v", MaxLongValueLen+1), -1},
	} {
		kvs, err := ParseText([]byte(c.text))
		if (err != nil) != (c.n < 0) || err == nil && len(kvs) != c.n {
			t.Errorf("%.40q: %d pairs, %v", c.text, len(kvs), err)
		}
	}
	var b TextBuffer
	if _, _, err := b.Add(nil, true); err == nil {
		t.Error("an empty PDU with C was accepted")
	}
	if _, done, err := b.Add([]byte("ab"), true); done || err != nil || !b.Pending() {
		t.Error("first piece")
	}
	if text, done, err := b.Add([]byte("c=d\x00"), false); !done || err != nil || string(text) != "abc=d\x00" || b.Pending() {
		t.Errorf("%q %v %v", text, done, err)
	}
}

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"iqn.2026-11.com.example:disk": true, "iqn.2026-11.com.example": true, "eui.0123456789abcdef": true,
		"naa.0123456789abcdef": true, "naa.0123456789abcdef0123456789abcdef": true, "IQN.2026-11.COM.EXAMPLE": true,
		"": false, "disk": false, "iqn.2026": false, "eui.0123": false, "naa.012345678": false, "iqn.2026-11.a b:c": false,
		"iqn.2026-11." + strings.Repeat("x", MaxNameLen-12): true, "iqn.2026-11." + strings.Repeat("x", MaxNameLen-11): false, "iqn.2026-11.ex/y": false,
	} {
		if err := CheckName(name); (err == nil) != good {
			t.Errorf("%.40q: %v", name, err)
		}
	}
}

func TestBinaryValues(t *testing.T) {
	for s, want := range map[string]string{
		"0x00ff": "00ff", "0X0A": "0a", "0xabc": "0abc", "0bAP8=": "00ff", "0BAP8": "00ff", "0x": "", "0b": "",
		"": "!", "1": "!", "12": "!", "0xg0": "!", "0b*": "!", "0x" + strings.Repeat("00", 1025): "!", "0b" + strings.Repeat("AAAA", 400): "!",
		"0b" + strings.Repeat("AAAA", 342): "!", // 1026 bytes in as many digits as 1024 have
	} {
		b, err := parseBinary(s)
		if got := fmt.Sprintf("%x", b); (err != nil) != (want == "!") || err == nil && got != want {
			t.Errorf("%.20q gave %s, %v", s, got, err)
		}
	}
	if formatBinary([]byte{0, 255}) != "0x00ff" {
		t.Error("formatBinary")
	}
}

func TestUnsolicitedLimit(t *testing.T) {
	p := Params{ImmediateData: true, InitialR2T: true, FirstBurstLength: 65536, MaxXmitDataSegmentLength: 8192}
	for _, c := range []struct{ n, imm, unsol uint32 }{{0, 0, 0}, {100, 100, 100}, {8192, 8192, 8192}, {100000, 8192, 8192}} {
		if i, u := p.UnsolicitedLimit(c.n); i != c.imm || u != c.unsol {
			t.Errorf("%d: %d, %d", c.n, i, u)
		}
	}
	p.InitialR2T = false
	if i, u := p.UnsolicitedLimit(100000); i != 8192 || u != 65536 {
		t.Errorf("%d, %d", i, u)
	}
	p.ImmediateData = false
	if i, u := p.UnsolicitedLimit(100); i != 0 || u != 100 {
		t.Errorf("%d, %d", i, u)
	}
}
