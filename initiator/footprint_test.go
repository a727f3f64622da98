package initiator

import (
	"testing"
	"unsafe"

	"softiser/initiator/blockio"
)

// What a READ touches of its slot and its request lies in a few lines of the cache, and of
// nothing else of theirs. 256 sessions of four commands bring each of these lines from far away.
func TestLinesOfACommand(t *testing.T) {
	const line = 64
	for _, x := range []struct {
		what       string
		size, most uintptr
	}{
		{"task", unsafe.Offsetof(task{}.taskRest), 4 * line},
		{"request", unsafe.Offsetof(request{}.node), 2 * line},
		{"blockio.Request", unsafe.Offsetof(blockio.Request{}.CDB), 3 * line},
	} {
		if x.size > x.most {
			t.Errorf("what every command uses of a %s has %d bytes, not at most %d", x.what, x.size, x.most)
		}
	}
	if n := unsafe.Sizeof(task{}) % line; n != 0 {
		t.Errorf("a task is %d bytes longer than whole lines: those of its neighbours are touched with it", n)
	}
}
