package iscsi

import (
	"fmt"

	"softiser/internal/fsm"
)

// impossible notes a transition that a table does not have. The session ends, because nobody
// knows any more what its initiator may be told. The caller may hold s.mu.
func (s *session) impossible(what string, from, to fmt.Stringer) {
	go s.broken(fsm.Illegal("iscsi", what, from, to))
}
