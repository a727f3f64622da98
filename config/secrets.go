package config

import (
	"bytes"
	"fmt"
	"os"
)

// MinSecret is the shortest CHAP secret: RFC 7143 §12.1.3 asks for 96 bits on a
// connection without IPsec.
const MinSecret = 12

type keyedUser struct {
	key  string
	user *User
}

type keyedAuth struct {
	key  string
	auth *Auth
}

// auths lists every auth section of the configuration with its key.
func (c *Config) auths() []keyedAuth {
	all := []keyedAuth{{"discovery.auth", &c.Discovery.Auth}}
	for i := range c.Targets {
		all = append(all, keyedAuth{fmt.Sprintf("targets[%d].auth", i), &c.Targets[i].Auth})
	}
	return all
}

// users lists every CHAP name of the configuration with its key.
func (c *Config) users() []keyedUser {
	var all []keyedUser
	for _, a := range c.auths() {
		for i := range a.auth.Users {
			all = append(all, keyedUser{fmt.Sprintf("%s.users[%d]", a.key, i), &a.auth.Users[i]})
		}
		if a.auth.Mutual != nil {
			all = append(all, keyedUser{a.key + ".mutual", a.auth.Mutual})
		}
	}
	return all
}

// readSecret reads a secret's file, which must be one that not every user of the machine
// can read. A group may: that is how a service gets at what an administrator keeps.
func readSecret(path string) ([]byte, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, unreadable(err)
	}
	if m := fi.Mode(); m.IsRegular() && m.Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%s has mode %04o, so that every user of this machine can get at the secret; chmod o= %s", path, m.Perm(), path)
	}
	return readFile(path, maxSecret)
}

// readSecrets reads the secrets of users from the files or environment variables that
// are named, and checks their length (RFC 7143 §9.2.1).
func (c *Config) readSecrets(r *report) {
	for _, u := range c.users() {
		switch {
		case u.user.SecretFile != "" && u.user.SecretEnv != "":
			r.add(u.key, "both secret_file and secret_env are set; keep one")
			continue
		case u.user.SecretFile != "":
			b, err := readSecret(u.user.SecretFile)
			if err != nil {
				r.add(u.key+".secret_file", "%v", err)
				continue
			}
			u.user.secret = bytes.TrimRight(b, "\r\n")
		case u.user.SecretEnv != "":
			u.user.secret = []byte(os.Getenv(u.user.SecretEnv))
			if len(u.user.secret) == 0 {
				r.add(u.key+".secret_env", "the environment variable %s is empty or not set", u.user.SecretEnv)
				continue
			}
		default:
			r.add(u.key, "no secret; name a secret_file or a secret_env")
			continue
		}
		if len(u.user.secret) < MinSecret {
			r.add(u.key, "the secret has %d bytes; RFC 7143 asks for at least %d on a connection without IPsec", len(u.user.secret), MinSecret)
		}
	}
	for _, a := range c.auths() {
		if a.auth.Mutual == nil {
			continue
		}
		for i := range a.auth.Users {
			// One secret for both directions can be reflected (RFC 7143 §12.1.3).
			if s := a.auth.Users[i].secret; len(s) > 0 && bytes.Equal(s, a.auth.Mutual.secret) {
				r.add(a.key+".mutual", "has the same secret as user %q; the two directions need different ones", a.auth.Users[i].Name)
			}
		}
	}
}
