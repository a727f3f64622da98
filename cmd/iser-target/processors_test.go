package main

import (
	"runtime"
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
