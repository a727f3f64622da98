package main

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"softiser/config"
	"softiser/internal/cores"
)

// TestSpareProcessors: a process with volumes that sync much has spare processors, whatever
// else it serves; not where somebody has said how many.
func TestSpareProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	memory, file := config.Volume{Type: config.VolumeMemory}, config.Volume{Type: config.VolumeFile}
	through := config.Volume{Type: config.VolumeFile, WriteThrough: true}
	for _, tc := range []struct {
		name string
		env  string
		vols []config.Volume
		more bool
	}{
		{"nothing", "", nil, false},
		{"memory and a file", "", []config.Volume{memory, file}, false},
		{"a device beside memory", "", []config.Volume{memory, {Type: config.VolumeRaw}}, true},
		{"a logical volume", "", []config.Volume{{Type: config.VolumeLVM}}, true},
		{"write-through", "", []config.Volume{through}, true},
		{"the environment says", "2", []config.Volume{through}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("GOMAXPROCS", tc.env)
			runtime.GOMAXPROCS(2)
			spareProcessors(tc.vols)
			want := 2
			if tc.more && cores.Count() > 1 {
				want = syncProcessors
			}
			if got := runtime.GOMAXPROCS(0); got != want {
				t.Errorf("%d processors, want %d", got, want)
			}
		})
	}
}

// A reload that adds the first volume that syncs much, or a place made for one, raises them as
// well; a dry run changes nothing.
func TestSpareProcessorsLater(t *testing.T) {
	if cores.Count() == 1 {
		t.Skip("one core: nothing is raised")
	}
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	t.Setenv("GOMAXPROCS", "")
	b := newReloadBed(t)
	hold := func(when string, want int) {
		t.Helper()
		if got := runtime.GOMAXPROCS(0); got != want {
			t.Errorf("%s: %d processors, want %d", when, got, want)
		}
	}
	runtime.GOMAXPROCS(2)
	b.write(strings.Replace(reloadBase, "path: file.img,", "path: file.img, write_through: true,", 1))
	b.reload("--dry-run")
	hold("dry run", 2)
	b.reload()
	hold("reload", syncProcessors)

	runtime.GOMAXPROCS(2)
	if code, out := command(t, "lun", "add", "--socket", b.sock, "iqn.2026-11.test:a", "9", "m=memory,size=1MiB"); code != 0 {
		t.Fatal(code, out)
	}
	hold("a volume in memory", 2)
	if code, out := command(t, "lun", "add", "--socket", b.sock, "iqn.2026-11.test:a", "10", "w="+filepath.Join(b.dir, "w.img")+",size=1MiB,writethrough"); code != 0 {
		t.Fatal(code, out)
	}
	hold("a volume in write-through", syncProcessors)
}
