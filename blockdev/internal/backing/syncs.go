package backing

import "sync"

// syncs are the syncs of a volume that are under way. Linux reports that data
// could not be written back once per open file: of several syncs that overlap, one
// gets the error, and it need not be the one whose data is lost. So a sync that has
// succeeded is only believed when every other that could have taken its error has
// ended as well:
//
//	mine    |––––––––––|· · · · ·|
//	theirs       |–––––––––––––––|        begun before mine had ended: waited for
//	another                |–––––––––|    begun later: cannot have taken it
//
// The zero value is ready.
type syncs struct {
	mu    sync.Mutex // guards what follows; a leaf
	begun uint64     // syncs so far: each one's number
	open  []uint64   // the numbers of those under way, ascending
	ended sync.Cond  // on mu: one has ended; its L is set by the first who waits
}

// begin enters a sync. It has to be called before the system call and before the
// look at what earlier ones have found.
func (s *syncs) begin() (number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	s.open = append(s.open, s.begun)
	return s.begun
}

// end takes a sync out, after what it has found is known to everybody.
func (s *syncs) end(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(number)
}

// endAndWait is end for a sync that has succeeded. It returns when none is under way
// any more that had begun until now.
func (s *syncs) endAndWait(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(number)
	if s.ended.L == nil {
		s.ended.L = &s.mu
	}
	for last := s.begun; len(s.open) > 0 && s.open[0] <= last; {
		s.ended.Wait()
	}
}

func (s *syncs) endLocked(number uint64) {
	for i, n := range s.open {
		if n == number {
			s.open = append(s.open[:i], s.open[i+1:]...)
			break
		}
	}
	s.ended.Broadcast()
}
