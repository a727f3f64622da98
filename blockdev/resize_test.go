package blockdev

import (
	"slices"
	"testing"
)

// Who reports beside somebody who does, or from within, does not wait, and the newest size is
// told last.
func TestReport(t *testing.T) {
	var h ResizeHooks
	var told []int64
	now := Info{Size: 1}
	info := func() Info { return now }
	defer h.Add(func(i Info) {
		told = append(told, i.Size)
		for now.Size < 3 {
			now.Size++
			h.Report(info)
		}
	})()
	h.Report(info)
	if want := []int64{1, 3}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	h.Report(info)
	if len(told) != 3 {
		t.Errorf("told %v", told)
	}
}
