package attach

import (
	"cmp"
	"fmt"
	"net"
	"strings"
)

// differs says what a process that is to go on with the attachment has been told otherwise.
func (r *Record) differs(opt *Options) error {
	if name, is, want := r.difference(opt); name != "" {
		return fmt.Errorf("%s of the running attachment is %q, the new process is told %q; that takes a detach", name, is, want)
	}
	return nil
}

// lacks says what an attach of the same volume asks for, and the attachment that is
// there does not have. What is left open may be as it is; a script that names a device would
// go on with it.
func (r *Record) lacks(opt Options) error {
	if opt.Device == "" || opt.Device == "auto" || opt.Device == "none" {
		opt.Device = deviceOf(r)
	}
	opt.Export, opt.TCP = cmp.Or(opt.Export, r.Export), cmp.Or(opt.TCP, r.TCP)
	if name, is, want := r.difference(&opt); name != "" {
		return fmt.Errorf("%s is attached already (process %d), with %s %q instead of %q: attach --detach it first, or leave %s out", r.URL, r.PID, name, is, want, name)
	}
	return nil
}

// difference names the first option that does not go with the attachment; "": all do.
func (r *Record) difference(opt *Options) (name, is, want string) {
	sock, tcp, device := r.Socket, r.TCP, deviceOf(r)
	for _, o := range []struct {
		name, want, is string
		agrees         bool // though the two are not spelled alike
	}{
		{"the volume", opt.URL, r.URL, false}, {"--export-name", opt.Export, r.Export, false},
		{"--socket", opt.Socket, sock, opt.Socket == "" || absolute(opt.Socket) == sock},
		{"--tcp", opt.TCP, tcp, opt.TCP != "" && tcp != "" && (strings.HasSuffix(opt.TCP, ":0") || sameLoopback(opt.TCP, tcp))},
		{"--device", opt.Device, device, sameDevice(opt.Device, device)},
		{"--read-only", fmt.Sprint(opt.ReadOnly), fmt.Sprint(r.ReadOnly), !opt.ReadOnly || r.ReadOnly},
	} {
		if !o.agrees && o.want != o.is {
			return o.name, o.is, o.want
		}
	}
	return "", "", ""
}

// deviceOf is the kernel device of a record as an option.
func deviceOf(r *Record) string {
	if r.Device == "" {
		return "none"
	}
	return r.Device
}

// sameLoopback reports whether an option leads to the address that is listened on.
func sameLoopback(option, is string) bool {
	host, port, err := net.SplitHostPort(option)
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	return err == nil && net.JoinHostPort(host, port) == is
}

// sameDevice reports whether an option leads to a device that there is.
func sameDevice(option, is string) bool {
	switch option {
	case "", "auto":
		return !strings.HasPrefix(is, string(deviceUblk))
	case "/dev/nbd":
		return strings.HasPrefix(is, string(deviceNBD))
	case "ublk":
		return strings.HasPrefix(is, string(deviceUblk))
	}
	return option == is
}
