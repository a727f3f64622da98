package open

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/blockdev"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want Spec
		err  string
	}{
		{text: "./disk0.img,size=1GiB", want: Spec{Path: "./disk0.img", Size: 1 << 30}},
		{text: "disk0.img", want: Spec{Path: "disk0.img"}},
		{text: "memory,size=512MiB,block=4096", want: Spec{Type: Memory, Size: 512 << 20, BlockSize: 4096}},
		{text: "null,size=1TiB", want: Spec{Type: Null, Size: 1 << 40}},
		{text: "file:memory,size=4096", want: Spec{Type: File, Path: "memory", Size: 4096}},
		{text: "raw:/dev/loop0,ro", want: Spec{Type: Raw, Path: "/dev/loop0", ReadOnly: true}},
		{text: "a,size=8KiB,phys=65536,writethrough,prealloc,hugepages", want: Spec{Path: "a", Size: 8192, PhysBlockSize: 65536, WriteThrough: true, Prealloc: true, HugePages: true}},
		{text: "", err: "a volume is a path"},
		{text: ",size=1GiB", err: "a volume is a path"},
		{text: "raw:", err: "no path"},
		{text: "memory", err: "needs a size"},
		{text: "null,size=1TiB,writethrough", err: "cannot be written through"},
		{text: "memory,size=1GiB,prealloc", err: "only files can"},
		{text: "raw:/dev/null,hugepages", err: "no huge pages"},
		{text: "memory,size=1000", err: "multiple of the block size"},
		{text: "a,size=4k", err: "ambiguous"},
		{text: "a,size=", err: "is not a size"},
		{text: "a,size=-1", err: "is not a size"},
		{text: "a,size=0", err: "at least one block"},
		{text: "a,size=1.5GiB", want: Spec{Path: "a", Size: 3 << 29}},
		{text: "a,size=9000000TiB", err: "the largest size"},
		{text: "a,block=1024", err: "not possible"},
		{text: "memory,size=1MiB,block=0", err: "not possible"},
		{text: "memory,size=1MiB,phys=0", err: "not possible"},
		{text: "a,ro=yes", err: "takes no value"},
		{text: "a,", err: "not known"},
		{text: "a,colour=red", err: "not known"},
	} {
		got, err := Parse(c.text)
		switch {
		case c.err == "" && err != nil:
			t.Errorf("Parse(%q): %v", c.text, err)
		case c.err == "" && got != c.want:
			t.Errorf("Parse(%q) = %+v, want %+v", c.text, got, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("Parse(%q) = %v, want an error with %q", c.text, err, c.err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"./disk0.img,size=1GiB", "memory,size=512MiB,block=4096", "null,size=1TiB", "raw:/dev/loop0,ro", "a,size=", ",,", "file:,size=1", "a,phys=99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		if s.Size < 0 || s.BlockSize < 0 || s.PhysBlockSize < 0 {
			t.Errorf("Parse(%q) = %+v: negative", text, s)
		}
		if (s.Type == Memory || s.Type == Null) != (s.Path == "") {
			t.Errorf("Parse(%q) = %+v: path and type disagree", text, s)
		}
	})
}

func TestTypes(t *testing.T) {
	for ty := Auto; ty <= Null; ty++ {
		if got, err := ParseType(ty.String()); err != nil || got != ty {
			t.Errorf("ParseType(%q) = %v, %v", ty.String(), got, err)
		}
	}
	if _, err := ParseType("iscsi"); err == nil {
		t.Error("an unknown type was accepted")
	}
	if s := Type(99).String(); s != "Type(99)" {
		t.Errorf("String of an unknown type = %q", s)
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	for _, c := range []struct {
		spec    Spec
		backend string
	}{
		{Spec{Path: path, Size: 1 << 20}, "file"},
		{Spec{Path: path}, "file"},
		{Spec{Path: path, ReadOnly: true}, "file"},
		{Spec{Path: path, MustExist: true, Rotational: true}, "file"},
		{Spec{Type: Memory, Name: "ram0", Size: 1 << 20, Lock: true}, "mem"},
		{Spec{Type: Null, Size: 1 << 40, BlockSize: 4096}, "null"},
	} {
		d, err := Open(c.spec)
		if err != nil {
			t.Errorf("Open(%+v): %v", c.spec, err)
			continue
		}
		if got := d.Info().Backend; got != c.backend {
			t.Errorf("Open(%+v) is a %s volume, want %s", c.spec, got, c.backend)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []Spec{
		{},
		{Path: filepath.Join(t.TempDir(), "missing"), Size: 4096, MustExist: true},
		{Type: Null, Size: 4096, Lock: true},
		{Path: filepath.Join(t.TempDir(), "missing")},
		{Path: t.TempDir(), Size: 4096},
		{Type: Raw, Path: path},
		{Type: Raw, Path: "/dev/does-not-exist"},
		{Type: Type(99)},
		{Type: Memory, Size: 4096, Path: "x"},
		{Type: Null, Size: 4096, BlockSize: 1000},
	} {
		d, err := Open(s)
		if err == nil {
			d.Close()
			t.Errorf("Open(%+v) succeeded", s)
		}
		if d != nil {
			t.Errorf("Open(%+v) returned a device with an error", s)
		}
	}
	if n := blockdev.DefaultPool().Out(); n != 0 {
		t.Errorf("%d bytes of pool buffers are out", n)
	}
}

func TestFault(t *testing.T) {
	d, err := Open(Spec{Type: Memory, Size: 1 << 20, Rotational: true, Fault: Fault{ErrorRate: 1, ReadDelay: time.Millisecond, WriteDelay: time.Microsecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if !d.Info().Rotational {
		t.Error("not rotational")
	}
	began := time.Now()
	if _, err := d.ReadAt(make([]byte, 512), 0); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("ReadAt = %v, want ErrMedium", err)
	}
	if time.Since(began) < time.Millisecond {
		t.Error("no delay")
	}
	if _, err := d.WriteAt(make([]byte, 512), 0); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("WriteAt = %v, want ErrMedium", err)
	}
}
