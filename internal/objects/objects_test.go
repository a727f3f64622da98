package objects

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// store is one with an empty bucket "vols".
func store(t *testing.T) gofakes3.Backend {
	t.Helper()
	return storeBehind(t, func(h http.Handler) http.Handler { return h })
}

// storeBehind is a store whose requests go through front.
func storeBehind(t *testing.T, front func(http.Handler) http.Handler) gofakes3.Backend {
	t.Helper()
	b := s3mem.New()
	srv := httptest.NewServer(front(gofakes3.New(b).Server()))
	t.Cleanup(srv.Close)
	if err := b.CreateBucket("vols"); err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"AWS_ENDPOINT_URL_S3": srv.URL, "AWS_ENDPOINT_URL": "", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "us-east-1"} {
		t.Setenv(k, v)
	}
	return b
}

// An object of several parts comes back as it was, and one that is given up leaves nothing.
func TestObject(t *testing.T) {
	b := store(t)
	data := make([]byte, 17<<20+3)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	for _, n := range []int{len(data), 1000, 1} {
		w, err := create(t.Context(), "s3://vols/a/key", 5<<20)
		if err == nil {
			_, err = io.Copy(w, bytes.NewReader(data[:n]))
			err = w.End(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := Open(t.Context(), "s3://vols/a/key")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data[:n]) {
			t.Errorf("%d bytes of %d, %v", len(got), n, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	w, err := create(t.Context(), "s3://vols/other", 5<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data[:12<<20]); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the volume is gone")
	if err := w.End(gone); err != gone {
		t.Errorf("%v", err)
	}
	if _, err := b.HeadObject("vols", "other"); err == nil {
		t.Error("half an object is there")
	}
}

// An object is given up whatever the reason is, be it one that ends a stream.
func TestGivenUp(t *testing.T) {
	b := store(t)
	for _, reason := range []error{io.EOF, io.ErrUnexpectedEOF} {
		w, err := create(t.Context(), "s3://vols/other", 5<<20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 6<<20)); err != nil {
			t.Fatal(err)
		}
		if err := w.End(reason); !errors.Is(err, reason) {
			t.Errorf("%v: %v", reason, err)
		}
		if _, err := b.HeadObject("vols", "other"); err == nil {
			t.Errorf("%v: half an object is there", reason)
		}
	}
}

const internalError = `<?xml version="1.0" encoding="UTF-8"?>` + "\n<Error><Code>InternalError</Code><Message>We encountered an internal error. Please try again.</Message></Error>"

// Whether there is an object is found out where the answer to its completion does not tell.
func TestCompletion(t *testing.T) {
	theirs := []byte("somebody else's, in as many bytes as ours has")
	ours := []byte("what is written here, in just as many as that")
	put := func(b gofakes3.Backend) {
		// As another export's: gofakes3 keeps metadata of the former object that a new one does not have.
		meta := map[string]string{"X-Amz-Meta-" + uploadKey: "theirs", "Last-Modified": time.Now().UTC().Format(http.TimeFormat)}
		if _, err := b.PutObject("vols", "key", meta, bytes.NewReader(theirs), int64(len(theirs)), nil); err != nil {
			t.Error(err)
		}
	}
	unit := minio.DefaultRetryUnit
	minio.DefaultRetryUnit = time.Millisecond // between attempts: nothing gets better by waiting
	defer func() { minio.DefaultRetryUnit = unit }()
	quiet := func() *httptest.ResponseRecorder { return httptest.NewRecorder() }
	for _, tt := range []struct {
		name string
		// complete is what becomes of a request to complete the upload, after n others.
		complete func(b gofakes3.Backend, n int, h http.Handler, w http.ResponseWriter, r *http.Request)
		head     bool   // the store tells nobody what it has
		want     string // the error; without, ours is there
		leaves   []byte
	}{
		{name: "the answer is lost", complete: func(_ gofakes3.Backend, n int, h http.Handler, w http.ResponseWriter, r *http.Request) {
			if n > 0 {
				h.ServeHTTP(w, r)
				return
			}
			h.ServeHTTP(quiet(), r)
			panic(http.ErrAbortHandler)
		}, leaves: ours},
		{name: "the answer breaks off", complete: func(_ gofakes3.Backend, _ int, h http.Handler, w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(quiet(), r)
			w.WriteHeader(http.StatusOK)
			io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?>`)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, leaves: ours},
		{name: "the answer is lost, and the object replaced since", complete: func(b gofakes3.Backend, n int, h http.Handler, w http.ResponseWriter, r *http.Request) {
			if n > 0 {
				h.ServeHTTP(w, r)
				return
			}
			h.ServeHTTP(quiet(), r)
			put(b)
			panic(http.ErrAbortHandler)
		}, want: "NoSuchUpload", leaves: theirs},
		{name: "the request is lost, and there is another object", complete: func(b gofakes3.Backend, _ int, _ http.Handler, _ http.ResponseWriter, _ *http.Request) {
			put(b)
			panic(http.ErrAbortHandler)
		}, want: "Connection closed", leaves: theirs},
		{name: "200 with an error", complete: func(_ gofakes3.Backend, _ int, _ http.Handler, w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, internalError)
		}, want: "internal error"},
		{name: "200 with an error over another object", complete: func(b gofakes3.Backend, _ int, _ http.Handler, w http.ResponseWriter, _ *http.Request) {
			put(b)
			io.WriteString(w, internalError)
		}, want: "internal error", leaves: theirs},
		{name: "200 with an error, once", complete: func(_ gofakes3.Backend, n int, h http.Handler, w http.ResponseWriter, r *http.Request) {
			if n == 0 {
				io.WriteString(w, internalError)
				return
			}
			h.ServeHTTP(w, r)
		}, leaves: ours},
		{name: "200 without anything", complete: func(gofakes3.Backend, int, http.Handler, http.ResponseWriter, *http.Request) {}, want: "s3://vols/key"},
		{name: "what there is cannot be seen", complete: func(_ gofakes3.Backend, _ int, h http.Handler, _ http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(quiet(), r)
			panic(http.ErrAbortHandler)
		}, head: true, want: "not known", leaves: ours},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b gofakes3.Backend
			var completions int
			b = storeBehind(t, func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch {
					case r.Method == http.MethodPost && r.URL.Query().Has("uploadId"):
						completions++ // one at a time: ours waits for each answer
						tt.complete(b, completions-1, h, w, r)
					case r.Method == http.MethodHead && tt.head:
						w.WriteHeader(http.StatusForbidden)
					default:
						h.ServeHTTP(w, r)
					}
				})
			})
			w, err := create(t.Context(), "s3://vols/key", 5<<20)
			if err == nil {
				_, err = w.Write(ours)
				err = w.End(err)
			}
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "s3://vols/key")) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			o, err := b.GetObject("vols", "key", nil)
			if err != nil {
				if tt.leaves != nil {
					t.Errorf("nothing is there: %v", err)
				}
				return
			}
			defer o.Contents.Close()
			if got, err := io.ReadAll(o.Contents); err != nil || !bytes.Equal(got, tt.leaves) {
				t.Errorf("%q is there, %v", got, err)
			}
		})
	}
}

// What does not work is said with the object's name.
func TestRefused(t *testing.T) {
	store(t)
	for name, want := range map[string]string{"s3://": "want s3://BUCKET/KEY", "s3://vols": "want s3://BUCKET/KEY", "s3://vols/": "want s3://BUCKET/KEY", "s3://vols/none": "does not exist", "s3://none/x": "does not exist"} {
		if r, err := Open(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	w, err := Create(t.Context(), "s3://none/x")
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Write([]byte("x"))
	if err := w.End(err); err == nil || !strings.Contains(err.Error(), "s3://none/x") {
		t.Errorf("a bucket that is not there: %v", err)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "127.0.0.1:9000")
	if _, err := Open(t.Context(), "s3://vols/x"); err == nil || !strings.Contains(err.Error(), "AWS_ENDPOINT_URL_S3 (else AWS_ENDPOINT_URL) is not http(s)://") {
		t.Errorf("an address without a scheme: %v", err)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	if _, err := Create(t.Context(), "s3://vols/x"); err == nil || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("no credentials: %v", err)
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("an object became a file")
	}
}
