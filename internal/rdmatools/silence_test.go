package rdmatools

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// impatient has the tools wait for a silent end as long as a test may.
func impatient(t *testing.T) {
	t.Helper()
	was := patience
	patience = 50 * time.Millisecond
	t.Cleanup(func() { patience = was })
}

// Ends that wait for what the other one does not send, as it was told of fewer messages, or as one was
// lost, give up.
func TestSilence(t *testing.T) {
	impatient(t)
	for _, c := range []struct{ tool, source, server string }{
		{"ucmatose --provider roce -C", "-b", "-s"},
		{"rc-pingpong -n", "--bind_source_ip", ""}, {"uc-pingpong -n", "--bind_source_ip", ""}, {"ud-pingpong -n", "--bind_source_ip", ""},
	} {
		t.Run(c.tool, func(t *testing.T) {
			s, cl := rdmatest.RoCEAddr().String(), rdmatest.RoCEAddr().String()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			more, fewer := "11", "10"
			if c.server != "" { // the client of ucmatose is who waits
				more, fewer = fewer, more
			}
			done := make(chan error, 1)
			go func() {
				_, err := tool(ctx, append(strings.Fields(c.tool), more, c.source, s)...)
				done <- err
			}()
			cerr := served(t, func() error {
				_, err := tool(ctx, strings.Fields(strings.Join([]string{c.tool, fewer, c.source, cl, c.server, s}, " "))...)
				return err
			})
			// Where both wait, the first one ends the other's wait.
			if err := errors.Join(cerr, <-done); !errors.Is(err, rdma.ErrTimeout) {
				t.Error(err)
			}
		})
	}
}

// A server of ucmatose that is told of more messages than its client has receives for is told so, as the
// original is.
func TestUCMatoseTooMany(t *testing.T) {
	s, c := rdmatest.RoCEAddr().String(), rdmatest.RoCEAddr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := tool(ctx, "ucmatose", "--provider", "roce", "-b", s, "-C", "11")
		done <- err
	}()
	_ = served(t, func() error {
		_, err := tool(ctx, "ucmatose", "--provider", "roce", "-b", c, "-s", s, "-C", "10")
		return err
	})
	if err := <-done; err == nil || ctx.Err() != nil {
		t.Errorf("the server: %v", err)
	}
}

// Over RoCE nothing tells a server of a client that was killed.
func TestSilentClients(t *testing.T) {
	impatient(t)
	for _, c := range []struct{ tool, port string }{
		{"rping -s --provider roce -a", "7174"},
		{"write-bw --provider roce --bind_source_ip", "18515"}, // with a client of perftest -R
	} {
		t.Run(c.tool, func(t *testing.T) {
			s := rdmatest.RoCEAddr().String()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := tool(ctx, append(strings.Fields(c.tool), s)...)
				done <- err
			}()
			client := rdmatest.NewEnd(t, overRoCE(), 0)
			p := &rdma.ConnParams{RoCE: rdma.RoCEParams{LocalAddr: rdmatest.RoCEAddr()}}
			if err := served(t, func() error {
				_, err := rdma.Dial(ctx, "roce", net.JoinHostPort(s, c.port), client.QP, p)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, rdma.ErrTimeout) {
				t.Error(err)
			}
		})
	}
}

// Nor a client of a server that has taken what it was sent.
func TestSilentServers(t *testing.T) {
	impatient(t)
	for _, c := range []struct {
		tool  string
		offer perfOffer
	}{
		{"send-lat -n 10 -s 64", perfOffer{Test: "send-lat", Size: 64, Depth: 1}},
		{"send-lat -n 10 -s 64 --perftest", perfOffer{}},
		{"rping -c -C 1", perfOffer{}},
	} {
		t.Run(c.tool, func(t *testing.T) {
			server, at := rdmatest.NewEnd(t, overRoCE(), 1), rdmatest.RoCEAddr().String()
			ln, err := server.Dev.Listen("roce", net.JoinHostPort(at, "0"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			for i := range 16 {
				server.Recv(t, uint64(i), make([]byte, 4096))
			}
			go func() {
				if req, err := ln.Accept(t.Context()); err == nil {
					_ = req.Accept(t.Context(), server.QP, &rdma.ConnParams{PrivateData: c.offer.append(nil)})
				}
			}()
			_, port, _ := net.SplitHostPort(ln.Addr().String())
			args := append(strings.Fields(c.tool), "--provider", "roce", "-p", port)
			if strings.HasPrefix(c.tool, "rping") {
				args = append(args, "-I", rdmatest.RoCEAddr().String(), "-a", at)
			} else {
				args = append(args, "--bind_source_ip", rdmatest.RoCEAddr().String(), at)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if _, err := tool(ctx, args...); !errors.Is(err, rdma.ErrTimeout) {
				t.Error(err)
			}
		})
	}
}

func overRoCE() *rdmatest.Options {
	return &rdmatest.Options{Device: rdma.DeviceConfig{Provider: rdma.ProviderRoCE}}
}
