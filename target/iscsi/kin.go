package iscsi

// families are the sessions by whose they are: a login that asks about those of its own
// initiator's name looks at no others. Discovery sessions are not there.
type families map[kinKey]*kin

// kinKey is an initiator's name at one target.
type kinKey struct {
	node      *node
	initiator string
}

// kin are the sessions of one name.
type kin struct {
	sessions map[*session]struct{}
	users    map[string]int // how many of them each user has who has proved himself
}

func (s *session) kin() kinKey { return kinKey{s.node, s.key.initiator} }

func (f families) add(n *session) {
	k := f[n.kin()]
	if k == nil {
		k = &kin{sessions: map[*session]struct{}{}, users: map[string]int{}}
		f[n.kin()] = k
	}
	k.sessions[n] = struct{}{}
	if n.user != "" {
		k.users[n.user]++
	}
}

func (f families) remove(n *session) {
	k := f[n.kin()]
	if k == nil {
		return
	}
	delete(k.sessions, n)
	if n.user != "" {
		if k.users[n.user]--; k.users[n.user] == 0 {
			delete(k.users, n.user)
		}
	}
	if len(k.sessions) == 0 {
		delete(f, n.kin())
	}
}

// of returns the sessions of the name of n.
func (f families) of(n *session) (all []*session) {
	if k := f[n.kin()]; k != nil {
		all = make([]*session, 0, len(k.sessions))
		for x := range k.sessions {
			all = append(all, x)
		}
	}
	return all
}

// otherUser returns a user but that of n who has sessions of its name.
func (f families) otherUser(n *session) (other string, ok bool) {
	if k := f[n.kin()]; k != nil {
		for u := range k.users { // one, or those who had the name before it was released
			if u != n.user {
				return u, true
			}
		}
	}
	return "", false
}
