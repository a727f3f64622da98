package doctor

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
)

// masked stands where a secret was.
const masked = "***"

// shortest is the shortest secret that is looked for: a shorter one would mask words.
const shortest = 6

// Mask takes secrets out of texts: those that it has been told, in the forms in which they
// may have been printed, and what looks like one.
type Mask struct{ secrets [][]byte }

// NewMask returns a mask that knows the values of the environment's variables whose names
// say that they hold a secret.
func NewMask() *Mask {
	m := &Mask{}
	for _, kv := range os.Environ() {
		if name, value, _ := strings.Cut(kv, "="); secretName.MatchString(name) {
			m.Add([]byte(value))
		}
	}
	return m
}

// Add tells the mask a secret. Of one that has several lines, each is one.
func (m *Mask) Add(secret []byte) {
	for line := range bytes.Lines(secret) {
		m.add(bytes.TrimSpace(line))
	}
	m.add(bytes.TrimSpace(secret))
	// The longest first: one may begin with another.
	slices.SortFunc(m.secrets, func(a, b []byte) int { return len(b) - len(a) })
}

func (m *Mask) add(s []byte) {
	if len(s) < shortest || bytes.HasPrefix(s, []byte("-----")) {
		return
	}
	quoted, err := json.Marshal(string(s))
	if err != nil {
		quoted = []byte(`""`) // a string has a form in JSON
	}
	m.secrets = append(m.secrets, s,
		quoted[1:len(quoted)-1],
		[]byte(url.QueryEscape(string(s))), []byte(url.PathEscape(string(s))),
		[]byte(hex.EncodeToString(s)), []byte(strings.ToUpper(hex.EncodeToString(s))),
		[]byte(base64.StdEncoding.EncodeToString(s)), []byte(base64.RawStdEncoding.EncodeToString(s)))
}

var secretName = regexp.MustCompile(`(?i)secret|password|passwd|psk|token|private`)

// What looks like a secret, and what is left of it.
var looks = []struct {
	re   *regexp.Regexp
	left string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), masked},
	{regexp.MustCompile(`DHHC-1:[0-9a-zA-Z]*:[A-Za-z0-9+/=]*:?`), "DHHC-1:" + masked},
	{regexp.MustCompile(`NVMeTLSkey-1:[0-9a-zA-Z]*:[A-Za-z0-9+/=]*:?`), "NVMeTLSkey-1:" + masked},
	{regexp.MustCompile(`(://[^\s/@%:]*)[%:][^\s/@]*@`), "${1}%" + masked + "@"}, // of libiscsi's form, and of everybody else's
	{regexp.MustCompile(`(?i)([a-z0-9_-]*(?:secret|password|passwd|psk|token))("?\s*[=:]\s*"?)[^\s"&,}]+`), "${1}${2}" + masked},
}

// Apply returns a text without the secrets.
func (m *Mask) Apply(b []byte) []byte {
	for _, s := range m.secrets {
		b = bytes.ReplaceAll(b, s, []byte(masked))
	}
	for _, l := range looks {
		b = l.re.ReplaceAll(b, []byte(l.left))
	}
	return b
}
