package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"softiser/internal/unixsocket"
	"softiser/target"
	"softiser/target/scsi"
	"softiser/target/volume"
)

// LUNRequest asks for a LUN. Spec names the volume in the form of the
// command line's --export: a path, "memory" or "null", with options.
type LUNRequest struct {
	LUN  uint16 `json:"lun"`
	Name string `json:"name"`
	Spec string `json:"spec"`
}

// NamespaceRequest asks for a namespace; Spec is as in a LUNRequest.
type NamespaceRequest struct {
	NSID uint32 `json:"nsid"`
	Name string `json:"name"`
	Spec string `json:"spec"`
}

// ResizeRequest asks for another size of a volume.
type ResizeRequest struct {
	Bytes int64 `json:"size_bytes"`
}

// AccessRequest asks for another asymmetric access state of a LUN through a
// portal group.
type AccessRequest struct {
	Group uint16           `json:"group"`
	State scsi.AccessState `json:"state"`
}

// GroupRequest asks for a group of volumes to be promoted or demoted within a time.
type GroupRequest struct {
	Timeout time.Duration `json:"timeout_ns"`
}

// Change is one difference that a reload has found between the configuration
// file and what is served.
type Change struct {
	Action string `json:"action"`          // add, remove, replace, update, resize
	Object string `json:"object"`          // what it is done to
	Error  string `json:"error,omitempty"` // why it is not done
}

// Warnings go along with an answer, each in a header (RFC 7234 §5.5: 299 is any other persistent warning).
const (
	warningHeader = "Warning"
	warningPrefix = "299 - "
)

// Error is the body of an answer that is not a success.
type Error struct {
	Message string `json:"error"`
}

// FileError is the error of a reload that has changed nothing, because the configuration file has mistakes.
type FileError struct{ Message string }

// Error is what the target says about the file.
func (e *FileError) Error() string { return e.Message }

// Backend is what the interface controls. AddLUN, RemoveLUN and their like open and close
// volumes besides mapping them, which the owner of the volumes must do.
type Backend struct {
	Status func() target.Status
	Kill   func(tsih uint16) error
	// Release takes an initiator's name at a target from the user whom it belongs to.
	Release   func(target, initiator string) error
	AddLUN    func(ctx context.Context, target string, r LUNRequest) error
	RemoveLUN func(ctx context.Context, target string, lun uint16) error
	Resize    func(ctx context.Context, target string, lun uint16, bytes int64) error
	// ResizeVolume is Resize for a volume wherever it is served.
	ResizeVolume    func(ctx context.Context, volume string, bytes int64) error
	AddNamespace    func(ctx context.Context, subsystem string, r NamespaceRequest) error
	RemoveNamespace func(ctx context.Context, subsystem string, nsid uint32) error
	// SetAccess changes an access state (an implicit ALUA transition).
	SetAccess func(target string, lun, group uint16, s scsi.AccessState) error
	// Promote and Demote make this node, or another one, the one that has a group of volumes,
	// which is named by itself or by a target or subsystem.
	Promote func(ctx context.Context, name string) error
	Demote  func(ctx context.Context, name string) error
	// Reload makes what is served agree with the configuration file, or, with dry,
	// only tells what that would change, and returns the warnings that the configuration has. A file
	// with mistakes is a FileError.
	Reload func(ctx context.Context, dry bool) (changes []Change, warnings []string, err error)
	LVM    LVM
	// Log is told who has asked for what, see audit.go; nil: nobody is.
	Log *zap.Logger
	// Change is asked before anything but a question is answered, with what that is; end is called when it has
	// been. nil: there is nothing to ask.
	Change func(ctx context.Context, what string) (end func(), err error)
	// Upgrade starts a process that takes this one's place, which ends once Upgraded.Over has
	// been called.
	Upgrade func(ctx context.Context, q UpgradeRequest) (Upgraded, error)
	// Trace follows the commands of a volume, see TraceRequest.
	Trace func(volume, node string, unit uint32, slower time.Duration) (*volume.Trace, error)
	// HandOver gives what is open to the process at the other end of the connection, which
	// belongs to it.
	HandOver func(*net.UnixConn)
}

// Listen opens the socket, and makes its directory if that is missing (what is in
// /run is gone after a boot). A stale one, left by a process that was killed, is
// replaced; one that answers is an error.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("admin socket %s: %w", path, err)
	}
	ln, err := unixsocket.Listen(path)
	if err != nil {
		return nil, fmt.Errorf("admin %w", err)
	}
	return ln, nil
}

// Serve answers requests until ctx is done.
func Serve(ctx context.Context, ln net.Listener, b Backend) error {
	srv := &http.Server{Handler: audited(Handler(b), b.Log), ConnContext: withPeer, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// maxBody bounds a request, bytes.
const maxBody = 64 << 10

// reloadPatience is how long storage may take for a reload. What it has not done then is in the answer, for
// which iser-target reload waits for 30 s.
const reloadPatience = 15 * time.Second

// Handler is the interface as an http.Handler.
func Handler(b Backend) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, b.Status())
	})
	b.handleTargets(mux)
	b.handleSubsystems(mux)
	mux.HandleFunc("PUT /v1/volumes/{name}/size", func(w http.ResponseWriter, r *http.Request) {
		var q ResizeRequest
		if body(w, r, &q) {
			done(w, b.ResizeVolume(r.Context(), r.PathValue("name"), q.Bytes))
		}
	})
	b.handleGroups(mux)
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), reloadPatience)
		defer cancel()
		changes, warnings, err := b.Reload(ctx, r.URL.Query().Has("dry"))
		if err != nil {
			done(w, err)
			return
		}
		for _, x := range warnings {
			w.Header().Add(warningHeader, warningPrefix+strconv.QuoteToASCII(x))
		}
		answer(w, http.StatusOK, changes)
	})
	b.LVM.handle(mux)
	handleProfiles(mux)
	all := http.NewServeMux()
	b.handleUpgrade(all)
	handleCapture(all) // it changes nothing that an upgrade would have to wait for
	b.handleTrace(all)
	all.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && b.Change != nil {
			end, err := b.Change(r.Context(), asked(r))
			if err != nil {
				done(w, err)
				return
			}
			defer end()
		}
		mux.ServeHTTP(w, r)
	})
	return all
}

// asked names a request for people.
func asked(r *http.Request) string {
	if r.URL.Path == lvmPath {
		return "lvm " + strings.Join(r.URL.Query()["arg"], " ")
	}
	return r.Method + " " + r.URL.Path
}

// handleTargets adds the requests about iSCSI targets, their LUNs and sessions.
func (b *Backend) handleTargets(mux *http.ServeMux) {
	mux.HandleFunc("DELETE /v1/sessions/{tsih}", func(w http.ResponseWriter, r *http.Request) {
		if n, ok := number(w, r, "tsih"); ok {
			done(w, b.Kill(n))
		}
	})
	mux.HandleFunc("POST /v1/targets/{iqn}/initiators/{name}/release", func(w http.ResponseWriter, r *http.Request) {
		done(w, b.Release(r.PathValue("iqn"), r.PathValue("name")))
	})
	mux.HandleFunc("POST /v1/targets/{iqn}/luns", func(w http.ResponseWriter, r *http.Request) {
		var q LUNRequest
		if body(w, r, &q) {
			done(w, b.AddLUN(r.Context(), r.PathValue("iqn"), q))
		}
	})
	mux.HandleFunc("DELETE /v1/targets/{iqn}/luns/{lun}", func(w http.ResponseWriter, r *http.Request) {
		if n, ok := number(w, r, "lun"); ok {
			done(w, b.RemoveLUN(r.Context(), r.PathValue("iqn"), n))
		}
	})
	mux.HandleFunc("PUT /v1/targets/{iqn}/luns/{lun}/size", func(w http.ResponseWriter, r *http.Request) {
		var q ResizeRequest
		if n, ok := number(w, r, "lun"); ok && body(w, r, &q) {
			done(w, b.Resize(r.Context(), r.PathValue("iqn"), n, q.Bytes))
		}
	})
	mux.HandleFunc("PUT /v1/targets/{iqn}/luns/{lun}/access", func(w http.ResponseWriter, r *http.Request) {
		var q AccessRequest
		if n, ok := number(w, r, "lun"); ok && body(w, r, &q) {
			done(w, b.SetAccess(r.PathValue("iqn"), n, q.Group, q.State))
		}
	})
}

// handleSubsystems adds the requests about NVMe subsystems and their namespaces.
func (b *Backend) handleSubsystems(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/subsystems/{nqn}/namespaces", func(w http.ResponseWriter, r *http.Request) {
		var q NamespaceRequest
		if body(w, r, &q) {
			done(w, b.AddNamespace(r.Context(), r.PathValue("nqn"), q))
		}
	})
	mux.HandleFunc("DELETE /v1/subsystems/{nqn}/namespaces/{nsid}", func(w http.ResponseWriter, r *http.Request) {
		if n, ok := number(w, r, "nsid"); ok {
			done(w, b.RemoveNamespace(r.Context(), r.PathValue("nqn"), uint32(n)))
		}
	})
}

// handleGroups adds the requests about groups of volumes, which one node has at a time.
func (b *Backend) handleGroups(mux *http.ServeMux) {
	for verb, do := range map[string]func(context.Context, string) error{"promote": b.Promote, "demote": b.Demote} {
		mux.HandleFunc("POST /v1/groups/{name}/"+verb, func(w http.ResponseWriter, r *http.Request) {
			var q GroupRequest
			if !body(w, r, &q) {
				return
			}
			if q.Timeout <= 0 {
				answer(w, http.StatusBadRequest, Error{fmt.Sprintf("timeout_ns %d: it is how long it may take, more than zero", q.Timeout)})
				return
			}
			ctx, cancel := context.WithTimeout(r.Context(), q.Timeout)
			defer cancel()
			done(w, do(ctx, r.PathValue("name")))
		})
	}
}

// handleProfiles adds Go's profiles, here alone: they hold what is in memory, and making them
// takes time of the data path.
func handleProfiles(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// An error here means that the client has gone.
	_ = json.NewEncoder(w).Encode(v)
}

func done(w http.ResponseWriter, err error) {
	if err != nil {
		code := http.StatusConflict
		if _, mistakes := errors.AsType[*FileError](err); mistakes {
			code = http.StatusUnprocessableEntity
		}
		answer(w, code, Error{err.Error()})
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func number(w http.ResponseWriter, r *http.Request, name string) (uint16, bool) {
	n, err := strconv.ParseUint(r.PathValue(name), 10, 16)
	if err != nil {
		answer(w, http.StatusBadRequest, Error{fmt.Sprintf("%s %q is not a number up to 65535", name, r.PathValue(name))})
		return 0, false
	}
	return uint16(n), true
}

func body(w http.ResponseWriter, r *http.Request, v any) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		answer(w, http.StatusBadRequest, Error{"request body: " + err.Error()})
		return false
	}
	return true
}
