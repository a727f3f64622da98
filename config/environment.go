package config

import (
	"os"
	"slices"
	"strings"
)

// checkEnv finds variables that begin as an override does and are none, because a name
// that is mistyped would silently change nothing.
func (c *Config) checkEnv(r *report) {
	known := []string{EnvPrefix + "_CACHE"} // of the interoperability tests
	for _, key := range overridable() {
		known = append(known, envName(key))
	}
	for _, u := range c.users() {
		if u.user.SecretEnv != "" {
			known = append(known, u.user.SecretEnv)
		}
	}
	c.hostKeys(func(_ string, _ *Subsystem, h *HostKey) {
		for _, p := range h.places() {
			known = append(known, *p.env)
		}
	})
	for _, name := range environment() {
		if !slices.Contains(known, name) {
			hint := didYouMean(name, known)
			if hint == "" {
				hint = "; with this prefix it has to name a setting, as SOFTISER_TRANSPORT_CRC names transport.crc: unset it, or call it otherwise"
			}
			r.found = append(r.found, &Problem{Key: name, Text: "this environment variable overrides nothing" + hint})
		}
	}
}

// MistypedEnv reports a variable whose name is nearly that of the override of key.
func MistypedEnv(key string) error {
	want := envName(key)
	for _, name := range environment() {
		if hint := didYouMean(name, []string{want}); name != want && hint != "" {
			return &Problem{Key: name, Text: "this environment variable overrides nothing" + hint}
		}
	}
	return nil
}

// environment lists the variables with our prefix that are set, without those of tests.
func environment() (names []string) {
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, EnvPrefix+"_") && !strings.HasPrefix(name, EnvPrefix+"_TEST_") && value != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
