package cli

import "testing"

// FuzzSelection: a selection is a condition or an error that quotes it, and parsing it leaves nothing out: with
// something behind it, it is no selection any more.
func FuzzSelection(f *testing.F) {
	for _, s := range []string{
		"lv_size>1g && lv_name=~^data", "!(lv_size<20m || lv_attr=~^V)", "tags=gold,lv_size>=8m", `lv_name="a b"`, "lv_time since 2026-01-01",
		"lv_name={a||b}", "data_percent>=50", "((((lv_name=a))))", "lv_name=", "lv_size=8m#lv_size!=4m", "stripes=2 && seg_count=1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range []string{"lv", "vg", "pv"} {
			c, fields, err := parseSelection(text, kind)
			switch {
			case err != nil && (c != nil || err.Error() == ""):
				t.Errorf("%s %q: %v, with a condition: %v", kind, text, err, c != nil)
			case err != nil:
			case c == nil || len(fields) == 0:
				t.Errorf("%s %q: no error, condition %v, %d columns", kind, text, c != nil, len(fields))
			default:
				if _, _, err := parseSelection(text+" )", kind); err == nil {
					t.Errorf("%s %q: a parenthesis behind it is not missed", kind, text)
				}
			}
		}
	})
}
