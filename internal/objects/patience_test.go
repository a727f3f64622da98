package objects

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// pipes is a listener of connections in memory, on which time may be that of a bubble.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// inBubble runs f in a bubble with a store that h is, until f returns.
func inBubble(t *testing.T, h http.Handler, f func(t *testing.T)) {
	for k, v := range map[string]string{"AWS_ENDPOINT_URL_S3": "http://store", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "us-east-1"} {
		t.Setenv(k, v)
	}
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		real := connect
		defer func() { connect = real }()
		connect = func(dial) dial {
			return func(ctx context.Context, _, _ string) (net.Conn, error) {
				ours, theirs := net.Pipe()
				select {
				case p.conns <- theirs:
					return ours, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		}
		srv := &http.Server{Handler: h}
		go srv.Serve(p)
		defer srv.Close()
		f(t)
	})
}

// announce answers a HEAD, and the head of a GET, of an object of so many bytes.
func announce(w http.ResponseWriter, bytes int) {
	h := w.Header()
	h.Set("Content-Length", strconv.Itoa(bytes))
	h.Set("ETag", `"1"`)
	h.Set("Last-Modified", "Mon, 02 Nov 2026 15:04:05 GMT")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
}

// An object whose body does not go on is an error, and not for ever.
func TestBodyStalls(t *testing.T) {
	inBubble(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		announce(w, 1000)
		if r.Method == http.MethodGet {
			w.Write(make([]byte, 500))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}), func(t *testing.T) {
		r, err := Open(t.Context(), "s3://vols/key")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		b, err := io.ReadAll(r)
		if len(b) != 500 || !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "neither taken nor sent anything for 2m0s") || time.Since(begun) != patience {
			t.Errorf("%d bytes, %v after %v", len(b), err, time.Since(begun))
		}
		r.Close()
	})
}

// A store that is slow is waited for, and so is whoever takes in what it sends.
func TestSlowIsNotStalled(t *testing.T) {
	const bytes = 10
	inBubble(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		announce(w, bytes)
		for i := 0; i < bytes && r.Method == http.MethodGet; i++ {
			if i < bytes/2 {
				time.Sleep(patience - time.Second)
			}
			w.Write([]byte{byte(i)})
			w.(http.Flusher).Flush()
		}
	}), func(t *testing.T) {
		r, err := Open(t.Context(), "s3://vols/key")
		if err != nil {
			t.Fatal(err)
		}
		for i := range bytes {
			var b [1]byte
			if _, err := io.ReadFull(r, b[:]); err != nil || b[0] != byte(i) {
				t.Fatalf("byte %d: %d, %v", i, b[0], err)
			}
			if i >= bytes/2 {
				time.Sleep(10 * patience)
			}
		}
		r.Close()
	})
}

// A store that stops taking a part is given it again, on another connection; one that takes it slowly goes on.
func TestUploadStalls(t *testing.T) {
	data := bytes.Repeat([]byte("softiser"), 1<<17)
	back := s3mem.New()
	if err := back.CreateBucket("vols"); err != nil {
		t.Fatal(err)
	}
	fake, puts := gofakes3.New(back).Server(), 0
	inBubble(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			puts++ // one after the other
			if puts == 1 {
				io.CopyN(io.Discard, r.Body, 100<<10)
				time.Sleep(time.Hour) // it is given up meanwhile
				return
			}
			r.Body = io.NopCloser(bufio.NewReaderSize(&slow{r.Body, 5}, 128<<10)) // more than is written at once
		}
		fake.ServeHTTP(w, r)
	}), func(t *testing.T) {
		defer time.Sleep(time.Hour) // until the first request has ended
		w, err := create(t.Context(), "s3://vols/key", 5<<20)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		_, err = w.Write(data)
		if err := w.End(err); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begun); puts != 2 || d < patience+5*(patience-time.Second) || d > 7*patience {
			t.Errorf("%d attempts in %v", puts, d)
		}
		o, err := back.GetObject("vols", "key", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(o.Contents); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// slow waits before some of its first reads, and then reads as much as it is asked for.
type slow struct {
	io.Reader
	times int
}

func (s *slow) Read(b []byte) (int, error) {
	if s.times == 0 {
		return s.Reader.Read(b)
	}
	s.times--
	time.Sleep(patience - time.Second) // in the bubble's time
	return io.ReadFull(s.Reader, b)
}
