package main

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"softiser/config"
	"softiser/internal/handover"
	"softiser/internal/systemd"
	"softiser/target"
)

// Sockets that the service manager has opened (systemd.socket(5)) are used instead of new
// ones: initiators that come while the service is restarted wait in their queue, and ports
// below 1024 take no capability. A socket is for the address of the configuration that it
// listens on; one of the name "metrics" is for that, whatever its address.

// metricsSocket is the FileDescriptorName= of the socket for metrics.
const metricsSocket = "metrics"

// activate takes what the manager has opened. A socket that the configuration has no use
// for is an error: nobody would answer there.
func (l *listeners) activate(srv *target.Server, cfg *config.Config) error {
	all, err := systemd.Sockets()
	for i, s := range all {
		if err = l.take(srv, cfg, s); err != nil {
			for _, rest := range all[i+1:] {
				syscall.Close(rest.FD) //nolint:errcheck // the process ends
			}
			return fmt.Errorf("socket %d (%s) of the service manager: %w", s.FD, s.Name, err)
		}
	}
	return err
}

// take finds the use of one socket, which is its owner's from then on, or is closed.
func (l *listeners) take(srv *target.Server, cfg *config.Config, s systemd.Socket) error {
	f := os.NewFile(uintptr(s.FD), s.Name)
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("%w; ListenStream= makes what is wanted", err)
	}
	switch a := ln.Addr().(type) {
	case *net.UnixAddr:
		if l.admin != nil || a.Name != cfg.Admin.Socket {
			ln.Close()
			return fmt.Errorf("%s is not admin.socket of the configuration, %q", a.Name, cfg.Admin.Socket)
		}
		ln.(*net.UnixListener).SetUnlinkOnClose(false) // the name is the manager's
		l.admin, l.kept = handover.Pausable(ln), true
		return nil
	case *net.TCPAddr:
		if l.metrics == nil && cfg.Admin.Metrics != "" && (s.Name == metricsSocket || sameAddress(cfg.Admin.Metrics, a)) {
			l.metrics = handover.Pausable(ln)
			return nil
		}
		ln.Close()
		for i := range cfg.Portals {
			if p := &cfg.Portals[i]; !p.RoCE() && sameAddress(p.Listen, a) {
				fd, err := syscall.Dup(s.FD)
				if err != nil {
					return err
				}
				syscall.CloseOnExec(fd)
				return srv.Inherit(p.Listen, fd)
			}
		}
		return fmt.Errorf("%v is no portal of the configuration, nor admin.metrics", a)
	}
	ln.Close()
	return fmt.Errorf("it is for %s; TCP and Unix sockets can be used", ln.Addr().Network())
}

// sameAddress reports whether a configured address is that of a socket. All addresses are
// the same, of whichever family.
func sameAddress(listen string, a *net.TCPAddr) bool {
	if isRoCE(listen) {
		return false
	}
	want, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil || want.Port != a.Port {
		return false
	}
	every := func(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }
	return want.IP.Equal(a.IP) || every(want.IP) && every(a.IP)
}
