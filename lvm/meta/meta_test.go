package meta

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"softiser/lvm/internal/ondisk"
)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLossless: what lvm2 wrote comes out byte for byte, from the tree and
// from the model.
func TestLossless(t *testing.T) {
	text := golden(t, "lin.txt")
	root, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := append(root.Append(nil), 0); !bytes.Equal(got, text) {
		t.Fatalf("tree differs:\n%s", got)
	}
	vg, err := Load(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := vg.Text(nil); !bytes.Equal(got, text) {
		t.Fatalf("model differs:\n%s", got)
	}
}

// scratch is the same group without a text.
func scratch(want *VG) *VG {
	vg := *want
	vg.root, vg.sec, vg.PVs, vg.LVs = nil, nil, nil, nil
	for _, p := range want.PVs {
		pv := *p
		pv.sec = nil
		vg.PVs = append(vg.PVs, &pv)
	}
	for _, l := range want.LVs {
		lv := *l
		lv.sec, lv.Segments = nil, nil
		for _, s := range l.Segments {
			seg := *s
			seg.sec = nil
			lv.Segments = append(lv.Segments, &seg)
		}
		vg.LVs = append(vg.LVs, &lv)
	}
	return &vg
}

// TestFromScratch builds the same group without a text: the volume group part
// is what lvm2 writes, to the byte.
func TestFromScratch(t *testing.T) {
	text := golden(t, "lin.txt")
	want, err := Load(text)
	if err != nil {
		t.Fatal(err)
	}
	vg := scratch(want)
	got := vg.Text(&Stamp{Description: "x", Host: "vm", Time: time.Unix(1795184601, 0), Tool: "test"})
	head, stamp, _ := strings.Cut(string(got), "# Generated")
	if want, _, _ := strings.Cut(string(text), "# Generated"); head != want {
		t.Fatalf("got\n%s\nwant\n%s", head, want)
	}
	if want := " by test: Fri Nov 20 14:23:21 2026\n\ncontents = \"Text Format Volume Group\"\nversion = 1\n\ndescription = \"x\"\n\n" +
		"creation_host = \"vm\"\ncreation_time = 1795184601\n\n\x00"; stamp != want {
		t.Errorf("stamped\n%q, want\n%q", stamp, want)
	}
	if _, err := Load(got); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(vg.Backup(&Stamp{Description: "x", Time: time.Unix(1, 0)})); err != nil {
		t.Fatal(err)
	}
}

// TestBackupFromScratch does so with snapshots and thin volumes, as a backup file. lvm2's remarks behind
// the numbers are more, and further to the right, but where we have one it says the same.
func TestBackupFromScratch(t *testing.T) {
	for _, name := range []string{"backup.vg", "full.vg"} {
		text := golden(t, name)
		want, err := Load(text)
		if err != nil {
			t.Fatal(err)
		}
		got := scratch(want).Backup(&Stamp{Time: time.Unix(1, 0)})
		body := func(b []byte) []string {
			s := string(b)
			return strings.Split(strings.TrimSpace(s[strings.Index(s, "\nvg0 {"):]), "\n")
		}
		ours, theirs := body(got), body(text)
		if len(ours) != len(theirs) {
			t.Fatalf("%s: %d lines, not %d:\n%s", name, len(ours), len(theirs), got)
		}
		remarks := 0
		for i := range ours {
			o, remark, remarked := strings.Cut(ours[i], "\t#")
			w, theirRemark, _ := strings.Cut(theirs[i], "\t#")
			if o != strings.TrimRight(w, "\t") || remarked && remark != theirRemark {
				t.Errorf("%s: %q, want %q", name, ours[i], theirs[i])
			}
			if remarked && theirRemark != "" {
				remarks++
			}
		}
		if remarks < 8 {
			t.Errorf("%s: %d remarks", name, remarks)
		}
	}
}

func TestBackupFile(t *testing.T) {
	vg, err := Load(golden(t, "backup.vg"))
	if err != nil {
		t.Fatal(err)
	}
	if vg.Name != "vg0" || vg.LV("str").Segments[0].StripeSize != 128 || vg.LV("lin").Extents() != 5 {
		t.Fatalf("%+v", vg)
	}
}

// TestFullBackup is a group with snapshots and thin volumes as lvm2 backs it up.
func TestFullBackup(t *testing.T) {
	vg, err := Load(golden(t, "full.vg"))
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, lv := range vg.LVs {
		if vg.Shown(lv) {
			shown = append(shown, lv.Name)
		}
	}
	if got := strings.Join(shown, " "); got != "lin str snap pool thin1 thin2" {
		t.Error(got)
	}
	pool := vg.LV("pool").Segments[0]
	if pool.TransactionID != 2 || pool.ChunkSize != 128 || vg.LV("thin2").Segments[0].Origin != "thin1" {
		t.Errorf("%+v", pool)
	}
	pool.Messages = []Message{{Create: "thin2"}, {Delete: 7}}
	vg.RenameLV("thin2", "other")
	again, err := Load(vg.Text(nil))
	if err != nil {
		t.Fatal(err)
	}
	if m := again.LV("pool").Segments[0].Messages; m[0].Create != "other" {
		t.Errorf("a message still names the volume by its old name: %+v", m)
	}
	again.RenameLV("other", "thin2")
	if m := again.LV("pool").Segments[0].Messages; len(m) != 2 || m[0].Create != "thin2" || m[1].Delete != 7 {
		t.Errorf("%+v", m)
	}
	again.LV("pool").Segments[0].Messages = nil
	if strings.Contains(string(again.Text(nil)), "message") {
		t.Error("messages stay in the text")
	}
}

// TestChanges: what is changed in a group of lvm2's is read back, and when all of it is changed back
// the text is lvm2's again.
func TestChanges(t *testing.T) {
	text := golden(t, "full.vg")
	vg, err := Load(text)
	if err != nil {
		t.Fatal(err)
	}
	seg := func(vg *VG, name string) *Segment { return vg.LV(name).Segments[0] }
	change := func(vg *VG) {
		vg.Tags, vg.Alloc = []string{"a", "b"}, "cling"
		pv := vg.PV("pv1")
		pv.Tags, pv.Device, pv.DevSize, pv.Flags = []string{"c"}, "/dev/vdz", 1<<20, []string{"MISSING"}
		lv := vg.LV("thin1")
		lv.Alloc = "anywhere"
		lv.SetTag("d", true)
		lv.SetStatus("LOCKED", true)
		lv.SetFlag("ACTIVATION_SKIP", true)
		s := seg(vg, "thin1")
		s.External, s.Merge, s.Tags = "lin", "thin2", []string{"e"}
		seg(vg, "lin").TypeFlags = "NEW"
		seg(vg, "snapshot0").Merging = true
		s = seg(vg, "pool")
		s.Discards, s.ZeroNew, s.TransactionID, s.ChunkSize = "ignore", false, 3, 256
	}
	before := vg.Clone()
	change(vg)
	got, err := Load(vg.Text(nil))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Tags, vg.Tags) || got.Alloc != vg.Alloc {
		t.Errorf("group: tags %v, allocation policy %q", got.Tags, got.Alloc)
	}
	gotPV, wantPV := *got.PV("pv1"), *vg.PV("pv1")
	gotPV.sec, wantPV.sec = nil, nil
	if !reflect.DeepEqual(gotPV, wantPV) {
		t.Errorf("%+v, want %+v", gotPV, wantPV)
	}
	for i, lv := range vg.LVs {
		l, want := *got.LVs[i], *lv
		if !l.Segments[0].Same(want.Segments[0]) || !reflect.DeepEqual(l.Segments[0].Tags, want.Segments[0].Tags) {
			t.Errorf("%s: %+v, want %+v", l.Name, l.Segments[0], want.Segments[0])
		}
		l.sec, l.Segments, want.sec, want.Segments = nil, nil, nil, nil
		if !reflect.DeepEqual(l, want) {
			t.Errorf("%+v, want %+v", l, want)
		}
	}
	got.Tags, got.Alloc = nil, ""
	pv, was := got.PV("pv1"), before.PV("pv1")
	pv.Tags, pv.Device, pv.DevSize, pv.Flags = nil, was.Device, was.DevSize, was.Flags
	lv := got.LV("thin1")
	lv.Alloc = ""
	lv.SetTag("d", false)
	lv.SetStatus("LOCKED", false)
	lv.SetFlag("ACTIVATION_SKIP", false)
	for _, name := range []string{"lin", "snapshot0", "thin1", "pool"} {
		s, was := seg(got, name), *seg(before, name)
		was.sec = s.sec
		*s = was
	}
	if got, want := got.Text(nil), before.Text(nil); !bytes.Equal(got, want) {
		t.Errorf("changed back\n%s\nwant\n%s", got, want)
	}
}

// lvm2 takes a single string for a list of one: it stays as it was until it is another.
func TestSingleWord(t *testing.T) {
	text := bytes.Replace(golden(t, "lin.txt"), []byte(`["ALLOCATABLE"]`), []byte(`"ALLOCATABLE"`), 1)
	vg, err := Load(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := vg.Text(nil); !bytes.Equal(got, text) || !vg.PVs[0].Allocatable() {
		t.Errorf("%s", got)
	}
	for want, words := range map[string][]string{`status = ["MISSING"]`: {"MISSING"}, `status = ["ALLOCATABLE", "MISSING"]`: {"ALLOCATABLE", "MISSING"}, "status = []": {}} {
		c := vg.Clone()
		c.PVs[0].Status = words
		if got := string(c.Text(nil)); !strings.Contains(got, want) {
			t.Errorf("%s is not in\n%s", want, got)
		}
	}
}

// The remarks of a backup tell sizes as lvm2 does, the largest unit of which there is one.
func TestSizesInRemarks(t *testing.T) {
	for sectors, want := range map[uint64]string{1: "512 Bytes", 2: "1 Kilobytes", 3: "1.5 Kilobytes", 2047: "1023.5 Kilobytes", 2048: "1 Megabytes", 1 << 30: "512 Gigabytes"} {
		vg := large(1)
		vg.ExtentSize = sectors
		got := string(vg.Backup(&Stamp{Description: "d", Tool: "test"}))
		if !strings.Contains(got, "extent_size = "+strconv.FormatUint(sectors, 10)+"\t# "+want+"\n") {
			t.Errorf("%d sectors are not %s in\n%s", sectors, want, got)
		}
		if !strings.HasPrefix(got, "# Generated by test: ") || !strings.Contains(got, "description = \"d\"\n") {
			t.Errorf("a backup without its head:\n%s", got)
		}
	}
}

// TestUnknown keeps everything the model does not know.
func TestUnknown(t *testing.T) {
	text := golden(t, "unknown.txt")
	vg, err := Load(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := vg.Text(nil); !bytes.Equal(got, text) {
		t.Fatalf("differs:\n%s", got)
	}
	if vg.SystemID != "box" {
		t.Errorf("system_id is %q", vg.SystemID)
	}
	if vg.LV("r1").Segments[0].Known() {
		t.Error("raid1 is said to be known")
	}
	lv := *vg.LV("lin")
	lv.Name, lv.sec, lv.ID = "second", nil, ondisk.NewUUID()
	seg := *lv.Segments[0]
	seg.sec, seg.Stripes = nil, []Area{{"pv1", 40}}
	lv.Segments = []*Segment{&seg}
	vg.LVs = append(vg.LVs, &lv)
	vg.Seqno++
	got := string(vg.Text(nil))
	for _, w := range []string{"future_key = 3.5", "raids = [\n\"r1_rmeta_0\", \"r1_rimage_0\"", "historical_logical_volumes", "system_id = \"box\"", "second {"} {
		if !strings.Contains(got, w) {
			t.Errorf("%q is lost in\n%s", w, got)
		}
	}
	vg.RenameLV("lin", "renamed")
	if again, err := Load(vg.Text(nil)); err != nil || again.LV("renamed") == nil || again.LV("lin") != nil {
		t.Fatal("rename alone is lost", err)
	}
	vg.RemoveLV(vg.LV("second"))
	again, err := Load(vg.Text(nil))
	if err != nil || again.LV("renamed") == nil || again.LV("second") != nil || again.LV("lin") != nil {
		t.Fatal(err)
	}
}

func TestErrors(t *testing.T) {
	base := string(bytes.TrimRight(golden(t, "lin.txt"), "\x00"))
	for name, sub := range map[string][2]string{
		"open section":    {"\n}\n# Generated", "\n# Generated"},
		"extra brace":     {"max_lv = 0", "max_lv = 0\n}"},
		"no value":        {"max_lv = 0", "max_lv ="},
		"bad uuid":        {"78MHJC-hFZx", "78MHJC-hFZ"},
		"overlap":         {"\"pv0\", 5", "\"pv0\", 4"},
		"beyond pv":       {"\"pv1\", 0", "\"pv1\", 60"},
		"unknown pv":      {"\"pv1\", 0", "\"pv9\", 0"},
		"gap":             {"start_extent = 0", "start_extent = 1"},
		"huge":            {"extent_count = 5", "extent_count = 99999999999"},
		"negative":        {"seqno = 3", "seqno = -3"},
		"stripes":         {"stripe_count = 2", "stripe_count = 3"},
		"extent size 0":   {"extent_size = 8192", "extent_size = 0"},
		"missing segment": {"segment_count = 1", "segment_count = 2"},
		"version":         {"version = 1", "version = 2"},
		"nested list":     {"flags = []", "flags = [[]]"},
		"open string":     {"format = \"lvm2\"", "format = \"lvm2"},
		"group's path":    {"vg0 {", "../../vg0 {"},
		"group's name":    {"vg0 {", "vg0\x1bc {"},
		"volume's name":   {"lin {", "-lin {"},

		"a brace too many at the end": {"# Generated", "}\n# Generated"},
		"no key":                      {"max_lv = 0", "= 0"},
		"a list in a value":           {"max_lv = 0", "max_lv = ]"},
		"two groups":                  {"# Generated", "vg1 {\n}\n# Generated"},
		"a number that is missing":    {"seqno = 3", ""},
		"a number in quotes":          {"seqno = 3", "seqno = \"3\""},
		"a volume's UUID":             {"lin {\nid = \"", "lin {\nid = \"-!?"},
		"a disk's UUID":               {"pv0 {\nid = \"", "pv0 {\nid = \"-!?"},
		"extents of more than 512GiB": {"extent_size = 8192", "extent_size = 1073741825"},
		"no stripes":                  {"stripe_count = 1\n\nstripes = [\n\"pv0\", 0\n]", "stripe_count = 0\nstripes = []"},
		"stripes that are not told":   {"stripe_count = 2", "stripe_count = 1"},
		"half a stripe":               {"extent_count = 6", "extent_count = 5"},
		"stripes of nothing":          {"stripe_size = 128", "stripe_size = 0"},
		"stripes of more than 512GiB": {"stripe_size = 128", "stripe_size = 1073741825"},
		"a stripe without its extent": {"\"pv0\", 0\n", "\"pv0\"\n"},
		"a stripe on a number":        {"\"pv0\", 0\n", "0, 0\n"},
		"an extent in quotes":         {"\"pv0\", 0\n", "\"pv0\", \"0\"\n"},
		"no list of stripes":          {"[\n\"pv0\", 0\n]", "\"pv0\""},
		"a segment without type":      {"type = \"striped\"", ""},

		"no such pool":              {"thin_pool = \"pool\"", "thin_pool = \"none\""},
		"a thin volume without":     {"thin_pool = \"pool\"", ""},
		"a device id of 25 bits":    {"device_id = 2", "device_id = 16777216"},
		"no such metadata":          {"metadata = \"pool_tmeta\"", "metadata = \"none\""},
		"a pool without metadata":   {"metadata = \"pool_tmeta\"", ""},
		"a pool without data":       {"pool = \"pool_tdata\"", ""},
		"a snapshot without origin": {"origin = \"lin\"", ""},
		"a snapshot without store":  {"cow_store = \"snap\"", ""},
	} {
		base := base
		if !strings.Contains(base, sub[0]) {
			base = string(golden(t, "full.vg"))
		}
		bad := strings.Replace(base, sub[0], sub[1], 1)
		if bad == base {
			t.Errorf("%s: the test changes nothing", name)
		}
		if _, err := Load([]byte(bad)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := Parse([]byte(strings.Repeat("a {", 100))); !errors.Is(err, ErrSyntax) {
		t.Errorf("deep nesting: %v", err)
	}
}

// TestManyExtents: numbers of extents have 32 bits, so that no sum of them overflows.
// A thin volume's are bounded by nothing else.
func TestManyExtents(t *testing.T) {
	base := string(golden(t, "full.vg"))
	i := strings.Index(base, `type = "thin"`)
	at := strings.LastIndex(base[:i], "extent_count = ")
	end := at + strings.IndexByte(base[at:], '\n')
	for n, ok := range map[string]bool{"4294967295": true, "4294967296": false, "9223372036854775807": false} {
		v, err := Load([]byte(base[:at] + "extent_count = " + n + base[end:]))
		if (err == nil) != ok {
			t.Errorf("%s extents: %v, %v", n, err, v != nil)
		}
	}
}

// TestHugeExtents: what does not overflow as a number of extents does not in bytes either.
func TestHugeExtents(t *testing.T) {
	base := string(bytes.TrimRight(golden(t, "lin.txt"), "\x00"))
	full := string(golden(t, "full.vg"))
	set := func(text, key, value string) string {
		t.Helper()
		i := strings.Index(text, key+" = ")
		if i < 0 {
			t.Fatalf("there is no %s", key)
		}
		i += len(key + " = ")
		n := strings.IndexAny(text[i:], "\t\n")
		return text[:i] + value + text[i+n:]
	}
	largest := set(base, "extent_size", "1073741824")
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"extents of 512 GiB":       {largest, true},
		"a PV of 2^24 of them":     {set(largest, "pe_count", "16777216"), false},
		"a PV of nearly as many":   {set(largest, "pe_count", "16777215"), true},
		"a PV that begins far out": {set(base, "pe_start", "36028797018963968"), false},
		"a thin volume":            {set(full, "extent_size", "1073741824"), true},
		"a chunk of nothing":       {set(full, "chunk_size", "0"), false},
		"a chunk of 2^64 bytes":    {set(full, "chunk_size", "36028797018963968"), false},
	} {
		if _, err := Load([]byte(c.text)); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	i := strings.Index(full, `type = "thin"`)
	at := strings.LastIndex(full[:i], "extent_count = ")
	end := at + strings.IndexByte(full[at:], '\n')
	huge := set(full[:at]+"extent_count = 16777216"+full[end:], "extent_size", "1073741824")
	if _, err := Load([]byte(huge)); err == nil {
		t.Error("a volume of 2^63 bytes was accepted")
	}
}

func TestLoop(t *testing.T) {
	base := string(bytes.TrimRight(golden(t, "lin.txt"), "\x00"))
	bad := strings.Replace(base, "\"pv0\", 0\n", "\"lin\", 0\n", 1)
	if _, err := Load([]byte(bad)); err == nil || !strings.Contains(err.Error(), "itself") {
		t.Fatal(err)
	}
	full := string(golden(t, "full.vg"))
	for name, c := range map[string]struct {
		old, new string
		ok       bool
	}{
		"a store on its snapshot":        {`"pv0", 8`, `"snapshot0", 0`, false},
		"an origin on its snapshot":      {`"pv0", 0`, `"snapshot0", 0`, false},
		"a pool's data on a thin volume": {`"pv0", 12`, `"thin1", 0`, false},
		"a pool's metadata on the pool":  {`"pv1", 3`, `"pool", 0`, false},
		// The origin of a thin volume is history, and names are given again.
		"thin volumes of each other": {"device_id = 1", "device_id = 1\norigin = \"thin2\"", true},
	} {
		text := strings.Replace(full, c.old, c.new, 1)
		if _, err := Load([]byte(text)); text == full || (err == nil) != c.ok || !c.ok && !strings.Contains(err.Error(), "itself") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Names are those that lvm2 takes (lvm(8), VALID NAMES).
func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "a-b": true, ".a": true, "...": true, "+_.-azAZ09": true, strings.Repeat("x", 127): true,
		"": false, ".": false, "..": false, "-a": false, "a b": false, "a/b": false, "a\x00": false, "\u00e9": false, strings.Repeat("x", 128): false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// What lvm2's grammar leaves open: blanks, comments and line breaks anywhere, escapes, quoted keys.
func TestGrammar(t *testing.T) {
	const odd = "# first\na\t= [ \"x\\\"y\\\\\", # inside\n\t-1.5, ]\n\n\"quoted-key\"=+7 # behind\nb\n{c=\"two\nlines\"}\nd {\n#alone\n}"
	root, err := Parse([]byte(odd + "\x00\x00"))
	if err != nil {
		t.Fatal(err)
	}
	const plain = "# first\na = [\"x\\\"y\\\\\", -1.5]\n\nquoted-key = +7\t# behind\nb {\nc = \"two\nlines\"\n}\nd {\n#alone\n}\n"
	if got := string(root.Append(nil)); got != plain {
		t.Errorf("%q, want\n%q", got, plain)
	}
	if a, _ := root.Get("a"); len(a.List) != 2 || a.List[0].Text != `x"y\` || a.List[1].Text != "-1.5" {
		t.Errorf("a is %+v", a)
	}
	if c, _ := root.Sub("b").Get("c"); c.Text != "two\nlines" {
		t.Errorf("c is %+v", c)
	}
	for in, want := range map[string]string{
		"a = 1\n}":                  "line 2: unexpected '}'",
		"a = \"x\ny\"\n# c\n= 3":    `line 4: unexpected '='`,
		"a {\nb [ = 1\n}":           `line 2: "b" is followed by neither`,
		"a = \n\n x":                "line 3: no value",
		"a = [[1]]":                 "line 1: list in a list",
		"a = [1 2]":                 "line 1: list element",
		"a = [1":                    "line 1: list element",
		"a = \"x\\":                 "line 1: string is not closed",
		"a {\n b = 1\n":             `line 3: section "a" is not closed`,
		"\"a b\" = 1":               "line 1: unexpected",
		strings.Repeat("a {\n", 17): "line 18: sections nested deeper than 16",
	} {
		if _, err := Parse([]byte(in)); !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", in, err, want)
		}
	}
	if _, err := Parse([]byte(strings.Repeat("a {\n", 16) + strings.Repeat("}\n", 16))); err != nil {
		t.Error("16 levels:", err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(golden(f, "lin.txt"))
	f.Add(golden(f, "unknown.txt"))
	f.Add([]byte("a{b=[1,\"\\\"\"]}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		root, err := Parse(b)
		if err != nil {
			return
		}
		out := root.Append(nil)
		again, err := Parse(out)
		if err != nil {
			t.Fatalf("%v\n%q\n%q", err, b, out)
		}
		if out2 := again.Append(nil); !bytes.Equal(out, out2) {
			t.Fatalf("not stable: %q\n%q\n%q", b, out, out2)
		}
		if vg, err := Load(b); err == nil {
			if _, err := Load(vg.Text(nil)); err != nil {
				t.Fatalf("%v\n%q", err, vg.Text(nil))
			}
		}
	})
}

// large is a group of n volumes of two segments each, in the order of a text that has seen many moves.
func large(n int) *VG {
	vg := &VG{Name: "vg0", ID: NewUUID(), Seqno: 1, Status: []string{"RESIZEABLE", "READ", "WRITE"}, ExtentSize: 8192}
	vg.PVs = append(vg.PVs, &PV{Name: "pv0", ID: NewUUID(), Status: []string{"ALLOCATABLE"}, DevSize: uint64(2*n+1) * 8192, PEStart: 2048, PECount: uint64(2 * n)})
	seg := func(start, at int) *Segment {
		return &Segment{Type: Striped, Start: uint64(start), Count: 1, Stripes: []Area{{"pv0", uint64(at)}}}
	}
	for i := range n {
		vg.LVs = append(vg.LVs, &LV{Name: "lv" + itoa(i), ID: NewUUID(), Status: []string{"READ", "WRITE", "VISIBLE"}, Segments: []*Segment{seg(0, i), seg(1, 2*n-1-i)}})
	}
	return vg
}

// The time that a text takes grows with its length, not with its square.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{1000, 4000, 16000} {
		text := large(n).Text(nil)
		b.Run(itoa(n), func(b *testing.B) {
			for b.Loop() {
				vg, err := Load(text)
				if err != nil {
					b.Fatal(err)
				}
				vg.Text(nil)
			}
		})
	}
}

// TestTwice: what may be there once is refused where it is there twice, wherever that is.
func TestTwice(t *testing.T) {
	for what, tt := range map[string]struct {
		f    func(vg *VG)
		want string
	}{
		"extent in two volumes": {func(vg *VG) { vg.LVs[90].Segments[0].Stripes[0].Off = 5 }, `"lv5" and "lv90" share extents of "pv0"`},
		"extent in one volume":  {func(vg *VG) { vg.LVs[90].Segments[0].Stripes[0].Off = 109 }, `"lv90" and "lv90" share extents of "pv0"`},
		"longer run":            {func(vg *VG) { vg.LVs[4].Segments[1].Count = 3 }, `"lv4" and "lv3" share extents of "pv0"`},
		"name":                  {func(vg *VG) { vg.LVs[90].Name = "lv5" }, `logical volume "lv5"`},
		"UUID of a volume":      {func(vg *VG) { vg.LVs[90].ID = vg.LVs[5].ID }, `logical volume "lv90"`},
		"UUID of a disk": {func(vg *VG) {
			pv := *vg.PVs[0]
			pv.sec = nil
			vg.AddPV(&pv)
		}, `physical volume "pv1"`},
	} {
		vg := large(100)
		tt.f(vg)
		if _, err := Load(vg.Text(nil)); !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s twice: %v, want %s", what, err, tt.want)
		}
	}
	if _, err := Load(large(100).Text(nil)); err != nil {
		t.Error(err)
	}
}
