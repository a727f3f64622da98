package iscsi

import "slices"

// sessionTable is the sessions that there are, by everything that a login asks for: the one of a
// TSIH, the one of an initiator port (session reinstatement), those under an initiator's name
// (whose it is), how many a holder has (his share), and the oldest discovery session (which
// makes room). A session is in all of these from add until remove.
//
// Frontend.mu guards it: its methods are called with that held.
type sessionTable struct {
	room        Room // as SetRoom has left it
	tsihs       map[uint16]*session
	ports       map[sessionKey]*session // not of discovery sessions: there may be any number
	kin         families                // nor are these
	discoveries []*session              // the oldest first
	shares      map[shareKey]int        // nobody has 0
	last        uint16                  // TSIH that was given away
}

func newSessionTable(room Room) sessionTable {
	return sessionTable{room: room, tsihs: map[uint16]*session{}, ports: map[sessionKey]*session{}, kin: families{}, shares: map[shareKey]int{}}
}

// freeTSIH gives a TSIH away that no session has. There is one, as the table has at most maxTSIH
// sessions.
func (t *sessionTable) freeTSIH() uint16 {
	for {
		t.last++
		if t.last == 0 { // asks for a new session
			continue
		}
		if _, taken := t.tsihs[t.last]; !taken {
			return t.last
		}
	}
}

// clashes reports whether a session is there with the TSIH or the initiator port of n.
func (t *sessionTable) clashes(n *session) bool {
	return t.tsihs[n.tsih] != nil || t.ports[n.key] != nil
}

// add enters a session that has its TSIH, which may be one that another process has given away.
func (t *sessionTable) add(n *session) {
	t.tsihs[n.tsih] = n
	t.last = max(t.last, n.tsih)
	t.shares[n.share]++
	if n.discovery() {
		t.discoveries = append(t.discoveries, n)
		return
	}
	t.ports[n.key] = n
	t.kin.add(n)
}

// remove takes a session out that has ended.
func (t *sessionTable) remove(n *session) {
	delete(t.tsihs, n.tsih)
	if t.shares[n.share]--; t.shares[n.share] == 0 {
		delete(t.shares, n.share)
	}
	if n.discovery() {
		t.discoveries = slices.DeleteFunc(t.discoveries, func(x *session) bool { return x == n })
		return
	}
	delete(t.ports, n.key)
	t.kin.remove(n)
}

// list returns the sessions by TSIH, those of one target when n is not nil.
func (t *sessionTable) list(n *node) []*session {
	var list []*session
	for _, x := range t.tsihs {
		if n == nil || x.node == n {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b *session) int { return int(a.tsih) - int(b.tsih) })
	return list
}

// oldestDiscovery finds the oldest discovery session that match accepts; nil: there is none.
func (t *sessionTable) oldestDiscovery(match func(*session) bool) *session {
	if i := slices.IndexFunc(t.discoveries, match); i >= 0 {
		return t.discoveries[i]
	}
	return nil
}
