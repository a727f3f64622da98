package roce

import (
	"net/netip"
	"slices"
	"sync"

	"softiser/rdma/internal/roce/rc"
)

// paths are what the connections of a port know of the paths to its peers, and share: the
// receive buffer of a peer is one, however many connections send to it. A path is remembered
// when its last connection is gone, for the next one.
type paths struct {
	mu sync.Mutex // guards what follows; a leaf
	m  map[netip.Addr]*path
}

type path struct {
	*rc.Path
	users int
}

// maxPaths bounds the paths that are remembered beyond those in use.
const maxPaths = 1024

// join is the path to a peer, until leave.
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
			p.m = map[netip.Addr]*path{}
		}
		w = &path{Path: rc.NewPath(mtu)}
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

// PathInfo is what is known of the path to a peer.
type PathInfo struct {
	Peer netip.Addr
	QPs  int // connected; 0 for a path that is only remembered
	rc.PathStats
}

// list is the paths that are known, by peer.
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
