package main

import (
	"fmt"
	"net"
	"os"
	"strings"
)

// tellReady tells whoever has started the process that it serves: a newline on a
// descriptor (0: none), and a message to systemd.
func tellReady(fd int) error {
	if fd > 0 {
		f := os.NewFile(uintptr(fd), "ready-fd")
		_, err := f.Write([]byte{'\n'})
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return fmt.Errorf("--ready-fd %d: %w", fd, err)
		}
	}
	return notifySystemd("READY=1")
}

// notifySystemd sends a state to the service manager, if there is one (sd_notify(3)). In
// the name of the socket @ stands for the zero byte of the abstract name space.
func notifySystemd(state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	if rest, abstract := strings.CutPrefix(name, "@"); abstract {
		name = "\x00" + rest
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err == nil {
		_, err = c.Write([]byte(state))
		c.Close()
	}
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return nil
}
