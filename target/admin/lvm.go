package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"softiser/internal/usage"
)

// VolumeGroup is an LVM group that the target has open.
type VolumeGroup struct {
	Name    string   `json:"name"`
	Devices []string `json:"devices"`
}

// LVM runs commands on the volume groups of a running target.
//
// POST /v1/lvm?arg=…&arg=… runs one: the request body is its standard input,
// the response body its standard output, while it runs; trailers carry the
// standard error and the outcome.
type LVM struct {
	Groups func() []VolumeGroup
	Run    func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error
}

// Question is the error of a command that does nothing until the user has agreed.
type Question struct{ Text string }

func (q *Question) Error() string { return q.Text }

const (
	lvmPath       = "/v1/lvm"
	trailerError  = "Softiser-Error"
	trailerKind   = "Softiser-Kind" // of an error that is one of these
	kindUsage     = "usage"
	kindQuestion  = "question"
	trailerStderr = "Softiser-Stderr"
	maxTrailer    = 32 << 10 // of each text
)

// readBuffer holds a trailer: net/http takes none that is longer than what it reads through. Each byte of
// two texts may be escaped.
const readBuffer = 2*3*maxTrailer + 4096

// limited keeps the first bytes that are written to it.
type limited struct{ b []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.b = append(l.b, p[:min(len(p), maxTrailer-len(l.b))]...)
	return len(p), nil
}

// handle adds the requests for lvm commands. Input and output stream; how a command has
// ended is in the trailer.
func (l LVM) handle(mux *http.ServeMux) {
	mux.HandleFunc("GET "+lvmPath, func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, l.Groups()) })
	mux.HandleFunc("POST "+lvmPath, func(w http.ResponseWriter, r *http.Request) {
		args := r.URL.Query()["arg"]
		if len(args) == 0 {
			answer(w, http.StatusBadRequest, Error{"there is no command: each of its words is an arg of the query"})
			return
		}
		// An import answers while its input is still arriving.
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			answer(w, http.StatusInternalServerError, Error{err.Error()})
			return
		}
		// Of input that the command has not read, net/http would read on beside the next request, and panic.
		w.Header().Set("Connection", "close")
		w.Header().Set("Trailer", trailerError+", "+trailerKind+", "+trailerStderr)
		w.WriteHeader(http.StatusOK)
		var stderr limited
		out := flushing{w, http.NewResponseController(w)}
		err := l.Run(r.Context(), args, r.Body, out, &stderr)
		if err != nil {
			said := err.Error()
			w.Header().Set(trailerError, url.QueryEscape(said[:min(len(said), maxTrailer)]))
			var q *Question
			switch {
			case errors.As(err, &q):
				w.Header().Set(trailerError, url.QueryEscape(q.Text))
				w.Header().Set(trailerKind, kindQuestion)
			case usage.Is(err):
				w.Header().Set(trailerKind, kindUsage)
			}
		}
		w.Header().Set(trailerStderr, url.QueryEscape(string(stderr.b)))
	})
}

// flushing sends what is written at once: progress is to be seen.
type flushing struct {
	w  io.Writer
	rc *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}

// Groups lists the volume groups that the target has open.
func (c *Client) Groups(ctx context.Context) (gs []VolumeGroup, err error) {
	err = c.do(ctx, http.MethodGet, lvmPath, nil, &gs)
	return gs, err
}

// LVM runs a command on the target's volume groups.
func (c *Client) LVM(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var here ends
	if stdin != nil {
		stdin = source{stdin, &here}
	}
	u := "http://target" + lvmPath + "?" + url.Values{"arg": args}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u, stdin)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.brokenOff(&here, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	if _, err := io.Copy(sink{stdout, &here}, resp.Body); err != nil {
		return c.brokenOff(&here, err)
	}
	if s, err := url.QueryUnescape(resp.Trailer.Get(trailerStderr)); err == nil {
		io.WriteString(stderr, s)
	}
	if s, err := url.QueryUnescape(resp.Trailer.Get(trailerError)); err == nil && s != "" {
		switch resp.Trailer.Get(trailerKind) {
		case kindQuestion:
			return &Question{s}
		case kindUsage:
			return usage.Errorf("%s", s)
		}
		return errors.New(s)
	}
	if _, ok := resp.Trailer[trailerStderr]; !ok {
		return c.brokenOff(&here, io.EOF)
	}
	return nil
}

// brokenOff says why the answer to a command has not come, or not the whole.
func (c *Client) brokenOff(here *ends, err error) error {
	here.mu.Lock()
	defer here.mu.Unlock()
	if here.err != nil {
		return here.err
	}
	var u *url.Error // which has all words of the command
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("admin socket %s: the target ended before the command did", c.path)
	}
	return fmt.Errorf("admin socket %s: %w", c.path, err)
}

// ends keep the first error of a command's input and output, which are on this side and not the admin socket's.
type ends struct {
	mu  sync.Mutex // net/http reads an input on its own
	err error
}

func (e *ends) keep(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil && err != io.EOF {
		e.err = err
	}
}

type source struct {
	io.Reader
	ends *ends
}

func (s source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.ends.keep(err)
	return n, err
}

type sink struct {
	io.Writer
	ends *ends
}

func (s sink) Write(p []byte) (int, error) {
	n, err := s.Writer.Write(p)
	s.ends.keep(err)
	return n, err
}
