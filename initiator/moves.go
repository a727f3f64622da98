package initiator

// moves is a state machine's drawing as a table: for each state the set of those that may
// follow it. To stay is no move.
type moves[S ~uint8] []uint16

// after makes the table of one row per state, with the states that may follow.
func after[S ~uint8](rows ...[]S) moves[S] {
	m := make(moves[S], len(rows))
	for from, row := range rows {
		for _, to := range row {
			m[from] |= 1 << to
		}
	}
	return m
}

func (m moves[S]) legal(from, to S) bool { return from == to || m[from]>>to&1 != 0 }

// badTransition is told of a transition that a table does not have. Tests make it panic.
var badTransition = func(error) {}
