package iscsi

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// appendBidiRead appends the AHS with the expected read length of a bidirectional
// command, which this package only parses.
func appendBidiRead(dst []byte, edtl uint32) []byte {
	return be.AppendUint32(append(dst, 0, 5, AHSBidiRead, 0), edtl)
}

// What a SCSI Command may carry behind its header, and what ends the parsing of it.
func TestCommandAHS(t *testing.T) {
	cdb := func(n int) []byte { return bytes.Repeat([]byte{7}, n) }
	ext := AppendExtendedCDB(nil, cdb(32))
	bidi := appendBidiRead(nil, 0x01020304)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, c := range map[string]struct {
		ahs  []byte
		good bool
	}{
		"nothing":                     {nil, true},
		"extended CDB":                {ext, true},
		"one byte of CDB":             {[]byte{0, 2, AHSExtendedCDB, 0, 7, 0, 0, 0}, true},
		"bidirectional":               {bidi, true},
		"both":                        {join(ext, bidi), true},
		"less than a header":          {[]byte{0, 1, 1}, false},
		"no length":                   {[]byte{0, 0, AHSExtendedCDB, 0}, false},
		"longer than what is there":   {[]byte{0, 6, AHSBidiRead, 0, 1, 2, 3, 4}, false},
		"padding is missing":          {[]byte{0, 2, AHSExtendedCDB, 0, 7}, false},
		"extended CDB of no bytes":    {[]byte{0, 1, AHSExtendedCDB, 0}, false},
		"extended CDB twice":          {join(ext, ext), false},
		"bidirectional twice":         {join(bidi, bidi), false},
		"bidirectional, 4 bytes":      {[]byte{0, 4, AHSBidiRead, 0, 1, 2, 3, 0}, false},
		"bidirectional, 6 bytes":      {[]byte{0, 6, AHSBidiRead, 0, 1, 2, 3, 4, 5, 0, 0, 0}, false},
		"unknown type":                {[]byte{0, 1, 9, 0}, false},
		"rubbish behind a good one":   {join(bidi, []byte{0}), false},
		"second one without a length": {join(bidi, []byte{0, 0, AHSExtendedCDB, 0}), false},
	} {
		got, err := ParseCommandAHS(c.ahs)
		if (err == nil) != c.good || err != nil && !errors.Is(err, ErrAHS) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	got, err := ParseCommandAHS(join(ext, bidi))
	if err != nil || !bytes.Equal(got.CDB, cdb(16)) || !got.HasBidi || got.BidiRead != 0x01020304 {
		t.Errorf("%+v, %v", got, err)
	}
	// A CDB that fits the header needs no segment.
	for n, want := range map[int]int{6: 0, 16: 0, 17: 8, 32: 20} {
		if b := AppendExtendedCDB(nil, cdb(n)); len(b) != want {
			t.Errorf("CDB of %d bytes: a segment of %d, want %d", n, len(b), want)
		}
	}
}

// Names of keys: the whole alphabet of RFC 7143 §6.1, and nothing else. Values are
// bounded, those that carry binary data more generously.
func TestKeyAlphabet(t *testing.T) {
	const label = "abcxyzABCXYZ0189.-+@_#:/"
	for _, c := range label {
		if _, err := ParseText([]byte("X" + string(c) + "=1\x00")); err != nil {
			t.Errorf("%q: %v", c, err)
		}
	}
	for c := range 256 {
		b := byte(c)
		if b == 0 || b == '=' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte(label, b) >= 0 {
			continue
		}
		if _, err := ParseText([]byte{'X', b, '=', '1', 0}); !errors.Is(err, ErrText) {
			t.Errorf("%q in the name of a key: %v", b, err)
		}
	}
	for _, k := range []struct {
		key   string
		limit int
	}{{"X-plain", MaxValueLen}, {keyCHAPC, MaxLongValueLen}, {keyCHAPR, MaxLongValueLen}} {
		for over := range 2 {
			text := AppendKey(nil, k.key, strings.Repeat("1", k.limit+over))
			if _, err := ParseText(text); (err == nil) != (over == 0) {
				t.Errorf("%s with %d bytes: %v", k.key, k.limit+over, err)
			}
		}
	}
}
