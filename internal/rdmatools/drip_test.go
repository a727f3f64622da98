package rdmatools

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
	"time"

	"softiser/internal/await"
)

// A path that hands on a few bytes at a time cuts FPDUs at every place, headers
// and trailers too.
func TestRPingOverDrips(t *testing.T) {
	for _, crc := range []string{"required", "off"} {
		t.Run(crc, func(t *testing.T) {
			t.Parallel() // it waits for its drips
			overDrips(t, crc)
		})
	}
}

func overDrips(t *testing.T, crc string) {
	port := freePort(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	pour := func(to, from net.Conn) {
		defer to.Close()
		buf := make([]byte, 13)
		for {
			n, err := from.Read(buf[:1+rand.IntN(len(buf))])
			if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
				return
			}
			time.Sleep(100 * time.Microsecond) // so that pieces arrive as pieces
		}
	}
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err != nil {
				in.Close()
				continue
			}
			go pour(in, out)
			go pour(out, in)
		}
	}()
	slow := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
	done := make(chan error, 1)
	go func() {
		_, err := tool(t.Context(), "rping", "-s", "--crc="+crc, "-a", "127.0.0.1", "-p", port, "-S", "3000", "-V")
		done <- err
	}()
	// The path is there before the server is.
	await.True(t, "the server listens", func() bool {
		if _, err = tool(context.Background(), "rping", "-c", "--crc="+crc, "-a", "127.0.0.1", "-p", slow, "-C", "3", "-S", "3000", "-V"); err == nil {
			return true
		}
		select {
		case serr := <-done:
			t.Fatalf("client: %v, server: %v", err, serr)
		default:
		}
		return false
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
}
