package connflags

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"softiser/initiator"
	"softiser/initiator/nvmf"
)

// Options turn TLS on, a URL's settings win, and what is for the other wire is an error.
func TestTLSOptions(t *testing.T) {
	const url = "iscsi://h/iqn.2026-11.test:a/0"
	for _, c := range []struct {
		url  string
		args []string
		want *initiator.TLS
	}{
		{url, nil, nil},
		{url, []string{"--tls"}, &initiator.TLS{}},
		{url, []string{"--tls-ca=ca"}, &initiator.TLS{CA: "ca"}},
		{url, []string{"--tls-cert=c", "--tls-key=k", "--tls-name=n"}, &initiator.TLS{Cert: "c", Key: "k", ServerName: "n"}},
		{url + "?tls", nil, &initiator.TLS{}},
		{url + "?tls_cert=a%2Fb&tls_key=k2&tls_name=x", []string{"--tls-ca=ca", "--tls-cert=c", "--tls-key=k", "--tls-name=n"}, &initiator.TLS{CA: "ca", Cert: "a/b", Key: "k2", ServerName: "x"}},
		{url + "?tls_ca=y", []string{"--tls-ca=ca", "--tls-cert=c"}, &initiator.TLS{CA: "y", Cert: "c"}},
	} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o := Register(fs)
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		cfg, err := initiator.ParseURL(c.url)
		if err == nil {
			err = o.Apply(&cfg)
		}
		if err != nil || (cfg.TLS == nil) != (c.want == nil) || c.want != nil && *cfg.TLS != *c.want {
			t.Errorf("%s %v: %+v, %v", c.url, c.args, cfg.TLS, err)
		}
		if strings.Join(c.args, "") == "--tls-ca=ca" {
			if err := o.NVMe(&nvmf.Config{}); err == nil || !strings.Contains(err.Error(), "pre-shared") {
				t.Errorf("an authority for NVMe: %v", err)
			}
		}
	}
}
