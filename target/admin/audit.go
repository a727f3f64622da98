package admin

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// peer is a process at the other end of the socket, as the kernel knew it when it connected.
type peer struct{ pid, uid, gid int }

type peerKey struct{}

// withPeer remembers who is at the other end of a connection (SO_PEERCRED).
func withPeer(ctx context.Context, c net.Conn) context.Context {
	sc, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return ctx
	}
	p := peer{pid: -1, uid: -1, gid: -1}
	_ = raw.Control(func(fd uintptr) {
		if u, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			p = peer{int(u.Pid), int(u.Uid), int(u.Gid)}
		}
	})
	return context.WithValue(ctx, peerKey{}, p)
}

// program is what the process calls itself, "" when it has gone. It is the process's own
// word, and only helps to find it.
func (p peer) program() string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// auditBody bounds what is told of the body of a request, bytes.
const auditBody = 1024

// audited tells the log who has asked for what and what came of it: each request that
// changes something, and each profile. Reading the status is told at the level debug.
func audited(next http.Handler, log *zap.Logger) http.Handler {
	if log == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tell := log.Info
		if r.Method == http.MethodGet && !strings.HasPrefix(r.URL.Path, "/debug/") {
			tell = log.Debug
		}
		p, ok := r.Context().Value(peerKey{}).(peer)
		if !ok {
			p = peer{-1, -1, -1}
		}
		program := p.program() // now: a command line is gone once it has its answer
		var head limitedTo
		if r.URL.Path != lvmPath { // whose body is a stream of data
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(r.Body, &head), r.Body}
		}
		began := time.Now()
		a := &answered{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(a, r)
		fields := []zap.Field{
			zap.Int("uid", p.uid), zap.Int("gid", p.gid), zap.Int("pid", p.pid), zap.String("program", program),
			zap.String("method", r.Method), zap.String("path", r.URL.RequestURI()), zap.Int("answer", a.code), zap.Duration("took", time.Since(began)),
		}
		if len(head) > 0 {
			fields = append(fields, zap.String("body", strings.TrimSpace(string(head))))
		}
		if e, err := url.QueryUnescape(w.Header().Get(trailerError)); err == nil && e != "" {
			fields = append(fields, zap.String("error", e))
		}
		tell("admin request", fields...)
	})
}

// limitedTo keeps the first auditBody bytes that are written to it.
type limitedTo []byte

func (l *limitedTo) Write(p []byte) (int, error) {
	*l = append(*l, p[:min(len(p), auditBody-len(*l))]...)
	return len(p), nil
}

// answered remembers the code of an answer.
type answered struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (a *answered) WriteHeader(code int) {
	a.code = code
	a.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }
