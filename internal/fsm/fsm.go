// Package fsm holds a state machine to its drawing.
//
// Each machine here has a drawing above the type of its states, the same as a Table, and one
// function that writes the state and goes by the table. A transition that the table does not
// have is a mistake of ours. What follows from it is for that function to say, since only it
// knows what can still be believed (a connection ends, an op stays where it is); Illegal words
// the error, and lets tests notice.
package fsm

import "fmt"

// Table says for each state which others may follow it, a bit for each: a look-up is made
// for every command, several times. There are at most 16 states.
type Table[S ~uint8] [16]uint16

// Of makes the table of one row per state, with the states that may follow.
func Of[S ~uint8](rows [][]S) (t Table[S]) {
	for from, row := range rows {
		for _, to := range row {
			t[from] |= 1 << to
		}
	}
	return t
}

// Has reports whether to may follow from. To stay is a transition like any other: who
// permits it everywhere asks first.
func (t *Table[S]) Has(from, to S) bool { return t[from&15]>>(to&15)&1 != 0 }

// OnIllegal is told of every transition that a table does not have. Tests make it panic.
var OnIllegal = func(error) {}

// Illegal is the error of a transition of what (with its article) that its table does not
// have; pkg is where that is.
func Illegal(pkg, what string, from, to any) error {
	err := fmt.Errorf("%s: internal error: %s cannot go from %v to %v", pkg, what, from, to)
	OnIllegal(err)
	return err
}
