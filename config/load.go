package config

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix starts the name of every environment override.
const EnvPrefix = "SOFTISER"

// Load reads and checks a configuration file. The error is a Problems when the
// file could be read.
func Load(path string) (*Config, error) {
	if path == "-" {
		return nil, errors.New("configuration: - would be standard input, which nobody can read a second time, as a reload has to; name a file, or ./- if one is called so (check -c - reads standard input)")
	}
	text, err := readFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return Parse(text, path)
}

// Read is Load for a configuration that comes from elsewhere, which messages call name. Relative paths are those of the
// current folder.
func Read(in io.Reader, name string) (*Config, error) {
	text, err := readAll(in, name, maxFile)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return Parse(text, name)
}

// Limits of files, in bytes: whoever names a device instead is told so.
const (
	maxFile   = 16 << 20
	maxSecret = 4096
)

func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(err)
	}
	defer f.Close()
	return readAll(f, path, limit)
}

func readAll(in io.Reader, name string, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes, which is not what is expected here", name, limit)
	}
	return b, err
}

// unreadable adds to the error of a file that is not for this user what has to be done about it: the one who has made the file
// is hardly the one whom the service runs as.
func unreadable(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; iser-target runs as user %d, who may not read it (chown, chgrp, chmod)", err, os.Geteuid())
	}
	return err
}

// bareIPv6 matches an address such as [::]:3260 that is not quoted: YAML takes it for a list.
var bareIPv6 = regexp.MustCompile(`(?m)^[^#"'\n]*(:|-|\[|,)[ \t]+\[[0-9A-Fa-f:.%]*:[0-9A-Fa-f:.%a-z]*\]:[0-9]`)

// Parse is Load for text that came from elsewhere; path is used in messages and
// as the origin of relative paths, and may be empty.
func Parse(text []byte, path string) (*Config, error) {
	r := &report{file: path, lines: map[string]int{}}
	var doc, second yaml.Node
	docs := yaml.NewDecoder(bytes.NewReader(text))
	err := docs.Decode(&doc)
	if err == nil && docs.Decode(&second) == nil {
		r.addLine(second.Line, "", "a second document begins here; a configuration is a single YAML document")
		return nil, r.err()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		hint := ""
		switch {
		case !utf8.Valid(text), bytes.IndexByte(text, 0) >= 0:
			hint = "; this is no text, and a configuration is YAML"
		case bytes.HasPrefix(text, []byte("\t")), bytes.Contains(text, []byte("\n\t")):
			hint = "; a line begins with a tab, and YAML is indented with blanks"
		case bareIPv6.Match(text):
			hint = "; an address in brackets has to be quoted, as in listen: \"[::]:3260\""
		}
		r.add("", "%s%s", strings.TrimPrefix(err.Error(), "yaml: "), hint)
		return nil, r.err()
	}
	r.checkShape(&doc)
	if err := r.err(); err != nil {
		return nil, err // values of the wrong shape would only repeat themselves below
	}
	c, err := decode(&doc)
	if err != nil {
		r.add("", "%v", err)
		return nil, r.err()
	}
	c.File = path
	c.checkWritten(r)
	c.fillDefaults()
	c.resolvePaths()
	c.check(r)
	c.checkEnv(r)
	c.readSecrets(r)
	c.readHostKeys(r)
	c.readTLS(r)
	if err := r.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Default is the configuration without a file: defaults, no portal, no volume,
// no target. The environment applies.
func Default() (*Config, error) { return Parse(nil, "") }

// decode makes the configuration of a document whose shape has been checked, with the defaults of
// the sections without lists and what the environment overrides there.
func decode(doc *yaml.Node) (*Config, error) {
	v := viper.New()
	v.SetEnvPrefix(EnvPrefix)
	v.SetEnvKeyReplacer(strings.NewReplacer(".", "_"))
	setDefaults(v)
	keys := map[string]any{}
	if len(doc.Content) > 0 {
		if err := doc.Decode(&keys); err != nil {
			return nil, err
		}
	}
	if err := v.MergeConfigMap(keys); err != nil {
		return nil, err
	}
	// Each scalar of the fixed sections can be set from the environment.
	for _, key := range overridable() {
		if err := v.BindEnv(key); err != nil {
			return nil, err
		}
	}
	c := &Config{}
	hooks := viper.DecodeHook(mapstructure.ComposeDecodeHookFunc(
		decodeText,
		mapstructure.StringToSliceHookFunc(","),
	))
	if err := v.UnmarshalExact(c, hooks); err != nil {
		return nil, envHint(err)
	}
	return c, nil
}

// envHint names the variables that do not fit: the file has passed its checks, so
// what cannot be decoded can only be from the environment.
func envHint(err error) error {
	var bad []string
	for _, key := range overridable() {
		for line := range strings.Lines(err.Error()) {
			if _, why, ok := strings.Cut(line, "'"+key+"' "); ok && os.Getenv(envName(key)) != "" {
				bad = append(bad, fmt.Sprintf("the environment variable %s is %q: %s", envName(key), os.Getenv(envName(key)), strings.TrimSpace(why)))
			}
		}
	}
	if len(bad) == 0 {
		return fmt.Errorf("a %s_… environment variable holds a value of the wrong form: %w", EnvPrefix, err)
	}
	return errors.New(strings.Join(bad, "; "))
}

// envName is the variable that overrides a key.
func envName(key string) string {
	return EnvPrefix + "_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// decodeText reads sizes and durations from whatever scalar they were written
// as; mapstructure's own hook takes only strings.
func decodeText(_, to reflect.Type, data any) (any, error) {
	if to != sizeType && to != durationType {
		if s, ok := data.(string); ok && to.Kind() == reflect.Int { // from the environment
			if v, ok := decimal(s); ok {
				return v, nil
			}
		}
		return data, nil
	}
	v := reflect.New(to)
	err := v.Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(fmt.Sprint(data)))
	return v.Elem().Interface(), err
}

// overridable lists the keys of the sections without lists.
func overridable() []string {
	var keys []string
	t := reflect.TypeFor[Config]()
	for _, section := range []string{"iscsi", "transport", "limits", "admin", "logging"} {
		f, _ := fieldOf(t, section)
		for _, k := range keysOf(f.Type) {
			keys = append(keys, section+"."+k)
		}
	}
	return keys
}

// setDefaults gives viper the default of every key that has one; environment variables
// override only keys that it knows.
func setDefaults(v *viper.Viper) {
	for key, value := range map[string]any{
		"iscsi.queue_depth":           128,
		"iscsi.immediate_data":        true,
		"iscsi.initial_r2t":           true,
		"iscsi.first_burst":           "64KiB",
		"iscsi.max_burst":             "1MiB",
		"iscsi.max_recv_data_segment": "256KiB",
		"iscsi.max_outstanding_r2t":   8,
		"iscsi.max_connections":       1,
		"iscsi.error_recovery_level":  0,
		"iscsi.header_digest":         []string{"none", "crc32c"},
		"iscsi.data_digest":           []string{"none", "crc32c"},
		"iscsi.time2wait":             "0s",
		"iscsi.time2retain":           "20s",
		"iscsi.nop_interval":          "15s",
		"iscsi.nop_timeout":           "15s",
		"iscsi.login_timeout":         "15s",
		"transport.crc":               "required",
		"transport.zerocopy":          "auto",
		"transport.fpdu":              "auto",
		"transport.busy_poll_us":      "auto",
		"transport.ird":               128,
		"transport.ord":               128,
		"transport.stream_login":      true,
		"limits.sessions":             4096,
		"limits.sessions_per_address": 0,
		"limits.reserved_sessions":    0,
		"limits.discovery_age":        "10m",
		"limits.pending_logins":       256,
		"limits.pending_per_address":  0,
		"limits.workers":              16,
		"limits.staging_memory":       "256MiB",
		"admin.socket":                "",
		"admin.metrics":               "",
		"admin.state_dir":             "",
		"logging.level":               "info",
		"logging.format":              "console",
	} {
		v.SetDefault(key, value)
	}
}

// fillDefaults sets what list elements leave out.
func (c *Config) fillDefaults() {
	for i := range c.Portals {
		p := &c.Portals[i]
		if p.Group == 0 {
			p.Group = 1
		}
		if t := p.TLS; t != nil {
			t.Mode, t.Names = cmp.Or(t.Mode, TLSModes[0]), cmp.Or(t.Names, TLSNames[0])
		}
	}
	for i := range c.Volumes {
		v := &c.Volumes[i]
		if v.Placement == "" {
			v.Placement = "direct"
		}
		if v.BlockSize == 0 {
			v.BlockSize = 512
		}
		if v.PhysBlockSize == 0 {
			v.PhysBlockSize = max(v.BlockSize, 4096)
		}
	}
	for _, k := range c.auths() {
		a := k.auth
		if a.Method == "" {
			a.Method = "none"
		}
		if a.Method == "chap" && len(a.Algorithms) == 0 {
			a.Algorithms = []string{"sha3-256", "sha256", "sha1", "md5"}
		}
	}
}

// resolvePaths makes relative paths relative to the file that names them, so
// that a configuration means the same wherever the process was started.
func (c *Config) resolvePaths() {
	dir := filepath.Dir(c.File)
	if c.File == "" {
		return
	}
	fix := func(p *string) {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	for i := range c.Volumes {
		fix(&c.Volumes[i].Path)
		for j := range c.Volumes[i].Devices {
			fix(&c.Volumes[i].Devices[j])
		}
	}
	for _, u := range c.users() {
		fix(&u.user.SecretFile)
	}
	c.hostKeys(func(_ string, _ *Subsystem, h *HostKey) {
		for _, p := range h.places() {
			fix(p.file)
		}
	})
	for _, p := range c.Portals {
		if p.TLS != nil {
			fix(&p.TLS.Cert)
			fix(&p.TLS.Key)
			fix(&p.TLS.ClientCA)
		}
	}
	fix(&c.Admin.Socket)
	fix(&c.Admin.StateDir)
	fix(&c.HA.Store)
}
