// Package statuspage shows the state of a server to a browser: what `iser-target status`
// prints, as a page that can be left open. It is read-only, has nothing from elsewhere and no
// line of script or style of its own in the page, which its Content-Security-Policy says.
//
//	GET /            the page, whole without JavaScript, which then loads itself again
//	GET /page.js     brings what has changed into the page, and draws plots from /metrics
//	GET /page.css    how it looks, light and dark
//
// Names of initiators and hosts are what peers have chosen: html/template escapes them, [name]
// shows no character that could hide or turn others around, and each table ends after rowLimit
// rows with a word about the rest.
package statuspage

import (
	"bytes"
	"context"
	"embed"
	"html/template"
	"net/http"
	"strconv"

	"softiser/target"
)

//go:embed page.gohtml page.js page.css
var files embed.FS

// policy lets a browser take from this address what the page consists of, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Config is what the page shows and where that comes from.
type Config struct {
	// Status is asked for each page; its error is what is answered instead, with 503.
	Status func(context.Context) (target.Status, error)
	// Version is that of the program.
	Version string
}

// Handler answers the paths of the package comment.
func Handler(cfg Config) http.Handler {
	page := template.Must(template.New("page.gohtml").Funcs(words).ParseFS(files, "page.gohtml"))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		secure(w)
		st, err := cfg.Status(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		var b bytes.Buffer // so that a mistake is an answer of its own, not half a page
		if err := page.Execute(&b, newView(&st, cfg.Version)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		send(w, "text/html; charset=utf-8", b.Bytes())
	})
	for name, kind := range map[string]string{"page.js": "text/javascript; charset=utf-8", "page.css": "text/css; charset=utf-8"} {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err) // it is embedded
		}
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			secure(w)
			send(w, kind, text)
		})
	}
	return mux
}

func secure(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store") // a page of the program before an upgrade would not fit its script
}

func send(w http.ResponseWriter, kind string, b []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // an error means that who asked has gone
}
