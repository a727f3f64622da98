package attach

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"softiser/initiator/nbd"
	"softiser/internal/handover"
	"softiser/internal/unixsocket"
	"softiser/internal/usage"
)

// listen starts the NBD server on the unix socket, and on TCP if wanted.
func (a *Attachment) listen(record string) (err error) {
	if err := a.makeServer(); err != nil {
		return err
	}
	a.later(a.closeListeners)
	a.later(a.stop)
	sock := a.opt.Socket
	if sock == "" {
		sock = record[:len(record)-len(".json")] + ".sock"
	}
	if sock, err = filepath.Abs(sock); err != nil {
		return err
	}
	l, err := listenUnix("NBD", sock, "--socket or --run-dir")
	if err != nil {
		return err
	}
	a.unix = handover.Pausable(l)
	a.Record.Socket = sock
	if a.opt.TCP != "" {
		t, err := listenLoopback(a.opt.TCP)
		if err != nil {
			return err
		}
		a.tcp = handover.Pausable(t)
		a.Record.TCP = t.Addr().String()
	}
	a.accept()
	return nil
}

// makeServer makes the NBD server of the volume.
func (a *Attachment) makeServer() (err error) {
	a.protected = a.lun.Info().ReadOnly
	a.export = &nbd.Export{Name: a.opt.Export, Description: a.opt.Describe, ReadOnly: a.opt.ReadOnly, LUN: exported{a.lun, a}}
	a.srv, err = nbd.NewServer(nbd.Config{
		Exports: []*nbd.Export{a.export}, OnError: a.opt.OnError, MaxConns: nbd.DefaultMaxConns + a.opt.Connections, OnDisconnect: a.disconnected,
	})
	return err
}

// listeners are those of the NBD server.
func (a *Attachment) listeners() (all []*handover.Listener) {
	for _, l := range []*handover.Listener{a.unix, a.tcp} {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

// accept serves what the listeners accept.
func (a *Attachment) accept() {
	for _, l := range a.listeners() {
		go func() { a.serve <- a.srv.Serve(l) }()
	}
}

// closeListeners comes behind stop: a Serve that has not begun yet closes its listener only
// later.
func (a *Attachment) closeListeners() error {
	for _, l := range a.listeners() {
		_ = l.Close() // closed before, as a rule
	}
	return nil
}

// listenUnix opens a socket for this user alone; what it is for and the options that place it are
// for errors.
func listenUnix(what, path, options string) (net.Listener, error) {
	l, err := unixsocket.Listen(path)
	switch {
	case err != nil && len(path) > unixsocket.MaxPath:
		return nil, fmt.Errorf("%s %w: choose a shorter %s", what, err, options)
	case err != nil:
		return nil, fmt.Errorf("%s %w", what, err)
	}
	return l, nil
}

// listenLoopback refuses addresses that others can reach: NBD here has neither
// authentication nor encryption.
func listenLoopback(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, usage.Errorf("--tcp %s: %w (expected 127.0.0.1:10809)", addr, err)
	}
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return nil, usage.Errorf("--tcp %s: only loopback addresses are served, because NBD here has no authentication", addr)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("--tcp: %w", err)
	}
	return l, nil
}
