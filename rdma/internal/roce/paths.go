package roce

import (
	"net/netip"
	"slices"
	"sync"

	"softiser/rdma/internal/roce/rc"
)

// paths are what the connections of a port know of the ways to its peers: a socket holds what
// it holds, however many connections send to it. A way is remembered when its last connection
// is gone, for the next one.
type paths struct {
	mu sync.Mutex // guards what follows; a leaf
	m  map[netip.Addr]*way
}

type way struct {
	*rc.Path
	users int
}

// maxPaths bounds the ways that are remembered beyond those in use.
const maxPaths = 1024

// join is the way to a peer, until leave.
func (p *paths) join(peer netip.Addr, mtu int) *rc.Path {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.m[peer]
	if w == nil {
		if len(p.m) >= maxPaths {
			for a, old := range p.m {
				if old.users == 0 {
					delete(p.m, a)
				}
			}
		}
		if p.m == nil {
			p.m = map[netip.Addr]*way{}
		}
		w = &way{Path: rc.NewPath(mtu)}
		p.m[peer] = w
	}
	w.users++
	return w.Path
}

func (p *paths) leave(peer netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m[peer].users--
}

// PathInfo is what is known of the way to a peer.
type PathInfo struct {
	Peer netip.Addr
	QPs  int // connected; 0 for a way that is only remembered
	rc.PathStats
}

// list is the ways that are known, by peer.
func (p *paths) list() []PathInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []PathInfo
	for a, w := range p.m {
		all = append(all, PathInfo{a, w.users, w.Stats()})
	}
	slices.SortFunc(all, func(a, b PathInfo) int { return a.Peer.Compare(b.Peer) })
	return all
}
