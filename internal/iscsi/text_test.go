package iscsi

import "testing"

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"iqn.2026-11.a:ä":                "iqn.2026-11.a:ä",
		"say \"a\\b\"":                   "say \"a\\b\"",
		"\x1b[2J":                        `\x1b[2J`,
		"a\x00\xff\u202e\u009b":          `a\x00\xff\u202e\u009b`,
		"one\ntwo\x1b \"x\"\n\nfour\r\n": "one\ntwo\\x1b \\\"x\\\"\n\nfour\\r\n",
	} {
		if got := PrintableLines(in); got != want {
			t.Errorf("%q became %q, not %q", in, got, want)
		}
	}
	if got := Printable("a\nb"); got != `a\nb` {
		t.Errorf("%q", got)
	}
}
