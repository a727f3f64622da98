package rdmatools

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"softiser/internal/usage"
	"softiser/rdma/rdmatest"
)

// What cannot be meant is refused as wrong usage, before anybody is connected to or waited for.
func TestUsageIsCheckedFirst(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nothing waits
	at := rdmatest.RoCEAddr().String()
	for _, c := range []struct{ args, want string }{
		{"rping -c -C -1", "-C -1"},
		{"rping -c --mpa-rev 3", "--mpa-rev 3"},
		{"rping -c --provider roce -m 100", "path MTU 100"},
		{"send-bw h -D -1", `"-1" is no time to run`},
		{"send-bw h -D 99999999999", "is no time to run"},
		{"send-bw h -D foo", "whole seconds"},
		{"send-bw --crc maybe", "--crc"},
		{"send-bw --provider roce --bind_source_ip x", "local address"},
		{"send-bw --provider roce --tcp-exchange -m 5", "path MTU 5"},
		{"send-bw --provider roce --tcp-exchange --bind_source_ip x", "local address"},
		{"rc-pingpong -m 5 --bind_source_ip " + at, "path MTU 5"},
		{"ud-pingpong --bind_source_ip x", "local address"},
		{"rping -s -p 0", "1 to 65535"},
		{"ucmatose -p 65536", "1 to 65535"},
		{"ucmatose -c 9000000000000000000", "1 to 16384 connections"},
		{"udaddy -p -1", "1 to 65535"},
		{"uc-pingpong -p http", "1 to 65535"},
		{"read-lat -p 99999", "1 to 65535"},
		{"udaddy -b " + at + " --timeout -1s", "--timeout -1s"},
		{"udaddy -s h --timeout 0s", "--timeout 0s"},
		{"mckey -m 239.1.2.3 -b " + at + " --timeout 0s", "--timeout 0s"},
		{"mckey -m 239.1.2.3 -b " + at + " -s --settle -1s", "--settle -1s"},
		{"devinfo -l --json", "-l does not go with --json"},
	} {
		_, err := tool(ctx, strings.Fields(c.args)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
		if !usage.Is(err) && !strings.Contains(fmt.Sprint(err), "invalid argument \"") { // which the root makes one
			t.Errorf("%s: %v is not taken for wrong usage", c.args, err)
		}
	}
}

// TestManyMessages: for how many messages there are to be, memory need not be there at once.
func TestManyMessages(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range []string{"read-lat", "send-lat", "write-lat", "atomic-lat"} {
		if _, err := tool(ctx, name, "127.0.0.1", "-n", "9000000000000000000"); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A tool that is interrupted while the ends tell each other over TCP where they are says so, and nothing of a
// connection that it has closed itself.
func TestInterruptedExchange(t *testing.T) {
	for _, name := range []string{"rc-pingpong", "send-lat --provider roce --tcp-exchange"} {
		t.Run("client of "+name, func(t *testing.T) {
			at := rdmatest.RoCEAddr().String()
			ln, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, port, _ := net.SplitHostPort(ln.Addr().String())
				_, err := tool(ctx, append(strings.Fields(name), at, "-p", port)...)
				done <- err
			}()
			nc, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		t.Run("server of "+name, func(t *testing.T) {
			at, port := rdmatest.RoCEAddr().String(), freePort(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := tool(ctx, append(strings.Fields(name), "--bind_source_ip", at, "-p", port)...)
				done <- err
			}()
			if err := served(t, func() error {
				nc, err := net.Dial("tcp", net.JoinHostPort(at, port))
				if err == nil {
					t.Cleanup(func() { nc.Close() })
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}
