package rows

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"softiser/benchmarks/internal/peers"
)

// Stage is the row's running servers.
type Stage struct {
	*peers.Env

	mu      sync.Mutex // guards what follows: a contender that hangs is left behind while the row goes on
	servers map[string]*peers.Server
	store   *peers.Store
	order   []*peers.Server
	closed  bool
	fresh   int // targets that served one measurement; not guarded, one contender runs at a time
}

// server returns the row's server of that name, starting it when needed.
func (st *Stage) server(name string, start func(*peers.Env) (*peers.Server, error)) (*peers.Server, error) {
	if s := st.started(name); s != nil {
		return s, nil
	}
	s, err := start(st.Env)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed && s != nil { // too late
		s.Close()
		return nil, errors.New("the row has ended")
	}
	if s != nil {
		st.order = append(st.order, s)
	}
	if err != nil {
		return nil, err
	}
	st.servers[name] = s
	return s, nil
}

// started returns a server that Prepare has started, or nil.
func (st *Stage) started(name string) *peers.Server {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.servers[name]
}

// urlOf is the address of the volume of a started target; change gives that over another
// wire, nil: iSER.
func (st *Stage) urlOf(name string, change func(string) string) string {
	url := st.started(name).URL
	if change != nil {
		url = change(url)
	}
	return url
}

func (st *Stage) close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
	for _, s := range slices.Backward(st.order) {
		s.Close()
	}
	if st.store != nil {
		st.store.Close()
	}
}

// newTarget starts a target for one measurement, which closes it; the row does so at the latest.
func (st *Stage) newTarget(c peers.TargetConfig) (*peers.Server, error) {
	st.fresh++
	return st.server(fmt.Sprintf("fresh %d", st.fresh), func(e *peers.Env) (*peers.Server, error) { return peers.Target(e, c) })
}

// onStore makes the row's store, which contenders share.
func (st *Stage) onStore(kind peers.StoreKind) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.store != nil || st.closed {
		return nil
	}
	s, err := peers.NewStore(st.Env, kind)
	if err == nil {
		st.store = s
	}
	return err
}
