package iscsi

import "fmt"

// The session, the tasks, the connections and the lost connections each have a drawing
// above the type of their states, and the same as a table. A state changes only in its
// setter, which goes by the table.

// moves says for each state which others may follow it.
type moves[S ~uint8] []states

// states is a set of states, a bit for each.
type states uint8

// to is what may follow.
func to[S ~uint8](all ...S) (set states) {
	for _, s := range all {
		set |= 1 << s
	}
	return set
}

func (m moves[S]) legal(from, to S) bool { return m[from]>>to&1 != 0 }

// badTransition is told of a transition that a table does not have. Tests make it
// panic.
var badTransition = func(error) {}

// impossible notes a transition that the table does not have, which is a mistake of
// ours. The session ends, because nobody knows any more what its initiator may be told.
// The caller may hold s.mu.
func (s *session) impossible(what string, from, to fmt.Stringer) {
	err := fmt.Errorf("internal error: a %s cannot go from %v to %v", what, from, to)
	badTransition(err)
	go s.broken(err)
}
