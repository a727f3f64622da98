package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/target"
	"softiser/target/scsi"
)

// start serves a fake backend and returns a client and what it was asked.
func start(t *testing.T) (*Client, *[]string, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	note := func(s string, err error) error { calls = append(calls, s); return err }
	b := Backend{
		Status: func() target.Status { return target.Status{State: "listening", Logins: 7} },
		Kill: func(n uint16) error {
			if n == 9 {
				return note("kill 9", errors.New("there is no session 9"))
			}
			return note("kill", nil)
		},
		AddLUN: func(_ context.Context, iqn string, r LUNRequest) error {
			return note("add "+iqn+" "+r.Name+" "+r.Spec, nil)
		},
		RemoveLUN: func(_ context.Context, iqn string, lun uint16) error { return note("remove "+iqn, nil) },
		SetAccess: func(iqn string, lun, group uint16, s scsi.AccessState) error {
			return note(fmt.Sprintf("access %d %d %v", lun, group, s), nil)
		},
		Resize:       func(_ context.Context, iqn string, lun uint16, n int64) error { return note("resize "+iqn, nil) },
		ResizeVolume: func(_ context.Context, name string, n int64) error { return note("resize volume "+name, nil) },
		AddNamespace: func(_ context.Context, nqn string, r NamespaceRequest) error {
			return note("add "+nqn+" "+r.Name+" "+r.Spec, nil)
		},
		RemoveNamespace: func(_ context.Context, nqn string, id uint32) error {
			return note(fmt.Sprintf("remove %s %d", nqn, id), nil)
		},
		Reload: func(_ context.Context, dry bool) ([]Change, []string, error) {
			if dry {
				return []Change{{Action: "add", Object: "x"}}, []string{"the \"first\"\nof ¼", "second"}, nil
			}
			return nil, nil, note("reload", errors.New("line 3: no"))
		},
		LVM: LVM{
			Groups: func() []VolumeGroup { return []VolumeGroup{{Name: "vg0", Devices: []string{"/a"}}} },
			Run: func(_ context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
				io.WriteString(stderr, "a warning\n")
				if _, err := io.Copy(stdout, stdin); err != nil {
					return err
				}
				return note(strings.Join(args, " "), errors.New("said: no way"))
			},
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, b) }()
	c := NewClient(path)
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c, &calls, path
}

// Who changes something is named to whoever has to wait for that.
func TestChangesAreNamed(t *testing.T) {
	var asked []string
	h := Handler(Backend{
		Status: func() target.Status { return target.Status{} },
		Change: func(_ context.Context, what string) (func(), error) {
			asked = append(asked, what)
			return nil, errors.New("not now")
		},
	})
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/v1/status", nil),
		httptest.NewRequest(http.MethodPost, "/v1/reload", nil),
		httptest.NewRequest(http.MethodPost, "/v1/lvm?arg=lvcreate&arg=-s&arg=g/v", nil),
	} {
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	if want := []string{"POST /v1/reload", "lvm lvcreate -s g/v"}; !slices.Equal(asked, want) {
		t.Errorf("named %q, want %q", asked, want)
	}
}

// A name is one part of a path, whatever is in it.
func TestNamesInPaths(t *testing.T) {
	c, calls, _ := start(t)
	ctx := t.Context()
	for _, name := range []string{".", "..", "...", "../luns", "a/../b", "%2E%2E", "%", "a?b#c", "a b+c", "x\n\x1b\x00", "ü", "\xff"} {
		*calls = nil
		for _, err := range []error{c.ResizeVolume(ctx, name, 1), c.RemoveLUN(ctx, name, 1), c.Resize(ctx, name, 1, 1), c.RemoveNamespace(ctx, name, 2)} {
			if err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		if want := []string{"resize volume " + name, "remove " + name, "resize " + name, "remove " + name + " 2"}; !slices.Equal(*calls, want) {
			t.Errorf("%q: the target was asked to %q", name, *calls)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	c, calls, path := start(t)
	ctx := t.Context()
	st, err := c.Status(ctx)
	if err != nil || st.State != "listening" || st.Logins != 7 {
		t.Errorf("status %+v, %v", st, err)
	}
	iqn := "iqn.2026-11.softiser:a/b c"
	for _, err := range []error{
		c.Kill(ctx, 3), c.AddLUN(ctx, iqn, LUNRequest{LUN: 1, Name: "n", Spec: "memory,size=1MiB"}),
		c.RemoveLUN(ctx, iqn, 1), c.Resize(ctx, iqn, 1, 1<<20),
		c.SetAccess(ctx, iqn, 1, AccessRequest{Group: 2, State: scsi.Standby}),
		c.AddNamespace(ctx, "nqn.x/y", NamespaceRequest{NSID: 2, Name: "n"}), c.RemoveNamespace(ctx, "nqn.x/y", 2), c.ResizeVolume(ctx, "a/b", 1),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if got, want := strings.Join(*calls, "; "), "kill; add "+iqn+" n memory,size=1MiB; remove "+iqn+"; resize "+iqn+"; access 1 2 standby; add nqn.x/y n ; remove nqn.x/y 2; resize volume a/b"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := c.Kill(ctx, 9); err == nil || err.Error() != "there is no session 9" {
		t.Errorf("an error of the target arrives as %v", err)
	}
	if ch, w, err := c.Reload(ctx, true); err != nil || len(ch) != 1 || ch[0].Object != "x" || !slices.Equal(w, []string{"the \"first\"\nof ¼", "second"}) {
		t.Errorf("reload, dry: %v, %q, %v", ch, w, err)
	}
	if _, _, err := c.Reload(ctx, false); err == nil || err.Error() != "line 3: no" {
		t.Errorf("reload: %v", err)
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v", fi.Mode(), err)
	}
}

// TestLVM runs a command that echoes its input, warns and fails.
func TestLVM(t *testing.T) {
	c, calls, _ := start(t)
	gs, err := c.Groups(t.Context())
	if err != nil || len(gs) != 1 || gs[0].Name != "vg0" || gs[0].Devices[0] != "/a" {
		t.Fatalf("%+v, %v", gs, err)
	}
	in := strings.Repeat("0123456789", 1<<20)
	var out, stderr strings.Builder
	err = c.LVM(t.Context(), []string{"import", "vg0/a b"}, strings.NewReader(in), &out, &stderr)
	if err == nil || err.Error() != "said: no way" {
		t.Errorf("the outcome arrives as %v", err)
	}
	if out.String() != in || stderr.String() != "a warning\n" || (*calls)[0] != "import vg0/a b" {
		t.Errorf("%d bytes of output, %q, %q", out.Len(), stderr.String(), *calls)
	}
}

// A command need not read what it is given: the connection ends with it, and without a panic.
func TestLVMLeavesInput(t *testing.T) {
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	b := LVM{Run: func(context.Context, []string, io.Reader, io.Writer, io.Writer) error { return nil }}
	go func() { ended <- Serve(ctx, ln, Backend{LVM: b}) }()
	defer func() { stop(); <-ended }()
	for path, want := range map[string]string{"/v1/lvm?arg=lvs": " 200 OK", "/v1/lvm": "there is no command"} {
		conn, err := net.Dial("unix", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: target\r\nContent-Length: 5\r\n\r\nhello")
		if path == "/v1/lvm" {
			conn.(*net.UnixConn).CloseWrite()
		}
		// The end of the connection comes after the panic has been told.
		if got, err := io.ReadAll(conn); err != nil || !strings.Contains(string(got), want) || said.Len() > 0 {
			t.Errorf("%s: %q, %v; log: %s", path, got, err, &said)
		}
	}
}

// What fails on this side is not the admin socket's, and a target that ends is no matter of HTTP.
func TestLVMBreaksOff(t *testing.T) {
	c, _, _ := start(t)
	full, away := errors.New("out: no space left"), errors.New("in: is a directory")
	if err := c.LVM(t.Context(), []string{"import", "vg0/a"}, strings.NewReader("data"), failing{full}, io.Discard); err != full {
		t.Errorf("an output that is full: %v", err)
	}
	if err := c.LVM(t.Context(), []string{"import", "vg0/a"}, failing{away}, io.Discard, io.Discard); err != away {
		t.Errorf("an input that cannot be read: %v", err)
	}
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		if conn, err := ln.Accept(); err == nil {
			conn.Read(make([]byte, 1))
			conn.Close()
		}
	}()
	c = NewClient(path)
	defer c.Close()
	err = c.LVM(t.Context(), []string{"import", "vg0/a"}, strings.NewReader(""), io.Discard, io.Discard)
	if err == nil || strings.Contains(err.Error(), "http") || !strings.HasPrefix(err.Error(), "admin socket "+path+": ") {
		t.Errorf("a target that has gone: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestLVMSaysMuch: all that a command has to say arrives, however much of it has to be escaped; of more than
// can, the beginning.
func TestLVMSaysMuch(t *testing.T) {
	const line = "  WARNING: «the device» is away.\n"
	for _, n := range []int{200, maxTrailer / len(line), maxTrailer} {
		for _, fails := range []bool{false, true} {
			text := strings.Repeat(line, n)
			b := LVM{Run: func(_ context.Context, _ []string, _ io.Reader, _, stderr io.Writer) error {
				io.WriteString(stderr, text)
				if fails {
					return errors.New(text)
				}
				return nil
			}}
			path := filepath.Join(t.TempDir(), "admin.sock")
			ln, err := Listen(path)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- Serve(ctx, ln, Backend{LVM: b}) }()
			c := NewClient(path)
			var stderr strings.Builder
			err = c.LVM(t.Context(), []string{"lvs"}, nil, io.Discard, &stderr)
			want := text[:min(len(text), maxTrailer)]
			if stderr.String() != want {
				t.Errorf("%d lines: %d bytes of the standard error have arrived", n, stderr.Len())
			}
			if !fails && err != nil || fails && (err == nil || err.Error() != want) {
				t.Errorf("%d lines: a command that fails is %t: %.200v", n, fails, err)
			}
			c.Close()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
}

func TestListen(t *testing.T) {
	_, _, path := start(t)
	if _, err := Listen(path); err == nil {
		t.Error("a socket that answers was taken over")
	}
	if _, err := Listen("/" + strings.Repeat("s", 107)); err == nil || !strings.Contains(err.Error(), "108 bytes; that of a socket has at most 107") {
		t.Errorf("a long path: %v", err)
	}
	// A file that was named by mistake stays.
	file := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("a file where the socket should be: %v", err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "data" {
		t.Errorf("the file is gone: %v", err)
	}
	// A socket that a killed process has left behind.
	stale := filepath.Join(t.TempDir(), "stale.sock")
	ln, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
	ln, err = Listen(stale)
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	ln.Close()
	ln, err = Listen(filepath.Join(t.TempDir(), "made", "for", "it"))
	if err != nil {
		t.Fatalf("a folder that does not exist: %v", err)
	}
	ln.Close()
	if _, err := Listen(filepath.Join(file, "s")); err == nil {
		t.Error("no error for a file in place of the folder")
	}
}

func TestNobodyAnswers(t *testing.T) {
	c := NewClient(filepath.Join(t.TempDir(), "nobody.sock"))
	if _, err := c.Status(t.Context()); !errors.Is(err, ErrNoTarget) {
		t.Errorf("got %v", err)
	}
	c = NewClient("/" + strings.Repeat("s", 107))
	if _, err := c.Status(t.Context()); !errors.Is(err, ErrNoTarget) || !strings.HasSuffix(err.Error(), ": the path has 108 bytes; that of a socket has at most 107") {
		t.Errorf("a long path: %v", err)
	}
}

// Who does not wait for an answer is not told that there is no target.
func TestGivenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mute.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		if nc, err := ln.Accept(); err == nil {
			defer nc.Close()
			cancel(errors.New("a signal"))
			<-t.Context().Done()
		}
	}()
	c := NewClient(path)
	defer c.Close()
	if _, err := c.Status(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrNoTarget) {
		t.Error(err)
	}
}

// A reload has a limit whatever its client has.
func TestReloadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Handler(Backend{Reload: func(ctx context.Context, _ bool) ([]Change, []string, error) {
			select {
			case <-ctx.Done():
				return []Change{{Object: "x", Error: "storage has not answered yet"}}, nil, nil
			case <-time.After(time.Hour):
				return nil, nil, nil
			}
		}})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/reload", nil))
		if !strings.Contains(w.Body.String(), "storage has not answered yet") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

func TestBadRequests(t *testing.T) {
	h := Handler(Backend{})
	for _, c := range []struct {
		method, path, body string
		code               int
	}{
		{"GET", "/v1/nothing", "", http.StatusNotFound},
		{"POST", "/v1/status", "", http.StatusMethodNotAllowed},
		{"DELETE", "/v1/sessions/70000", "", http.StatusBadRequest},
		{"DELETE", "/v1/targets/x/luns/-1", "", http.StatusBadRequest},
		{"POST", "/v1/targets/x/luns", "{", http.StatusBadRequest},
		{"POST", "/v1/targets/x/luns", `{"lun":1,"unknown":2}`, http.StatusBadRequest},
		{"POST", "/v1/targets/x/luns", `{"name":"` + strings.Repeat("x", maxBody) + `"}`, http.StatusBadRequest},
		{"PUT", "/v1/targets/x/luns/1/size", `{"size_bytes":"big"}`, http.StatusBadRequest},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		if w.Code != c.code {
			t.Errorf("%s %s: status %d, want %d", c.method, c.path, w.Code, c.code)
		}
	}
}
