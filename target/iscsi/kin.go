package iscsi

import "slices"

// kinKey is an initiator's name at one target.
type kinKey struct {
	node      *node
	initiator string
}

func (s *session) kin() kinKey { return kinKey{s.node, s.key.initiator} }

// kin are the sessions of one initiator's name at one target: a login that asks about those
// looks at no others. Frontend.mu guards it.
type kin struct {
	sessions map[*session]struct{}
	users    map[string]int // how many of them each user has who has proved himself
}

// listLocked puts a session, which has its TSIH, into the tables. The caller holds s.mu.
func (s *Frontend) listLocked(n *session) {
	s.sessions[n.tsih] = n
	s.shares[n.share]++
	if n.discovery() {
		s.discoveries = append(s.discoveries, n)
		return
	}
	s.keys[n.key] = n
	k := s.kin[n.kin()]
	if k == nil {
		k = &kin{sessions: map[*session]struct{}{}, users: map[string]int{}}
		s.kin[n.kin()] = k
	}
	k.sessions[n] = struct{}{}
	if n.user != "" {
		k.users[n.user]++
	}
}

// unlistLocked takes a session out of the tables. The caller holds s.mu.
func (s *Frontend) unlistLocked(n *session) {
	delete(s.sessions, n.tsih)
	if s.shares[n.share]--; s.shares[n.share] == 0 {
		delete(s.shares, n.share)
	}
	if n.discovery() {
		if i := slices.Index(s.discoveries, n); i >= 0 {
			s.discoveries = slices.Delete(s.discoveries, i, i+1)
		}
		return
	}
	if s.keys[n.key] == n {
		delete(s.keys, n.key)
	}
	k := s.kin[n.kin()]
	delete(k.sessions, n)
	if n.user != "" {
		if k.users[n.user]--; k.users[n.user] == 0 {
			delete(k.users, n.user)
		}
	}
	if len(k.sessions) == 0 {
		delete(s.kin, n.kin())
	}
}

// kinOf returns the sessions of the name of n at its target.
func (s *Frontend) kinOf(n *session) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kin[n.kin()]
	if k == nil {
		return nil
	}
	all := make([]*session, 0, len(k.sessions))
	for x := range k.sessions {
		all = append(all, x)
	}
	return all
}
