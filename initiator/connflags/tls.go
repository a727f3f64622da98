package connflags

import (
	"errors"

	"github.com/spf13/pflag"

	"softiser/initiator"
)

// tlsOptions are those of TLS: certificates for iSCSI, a pre-shared key for NVMe/TCP.
type tlsOptions struct {
	on                  bool
	ca, cert, key, name string
}

func (o *tlsOptions) register(fs *pflag.FlagSet) {
	fs.BoolVar(&o.on, "tls", false, "TLS 1.3: over iscsi:// with certificates, over nvme+tcp:// with a pre-shared key")
	fs.StringVar(&o.ca, "tls-ca", "", "iSCSI: file (PEM) of the authorities of targets' certificates; turns TLS on (default: those of the system)")
	fs.StringVar(&o.cert, "tls-cert", "", "iSCSI: file (PEM) of our certificate, for targets that ask for one; turns TLS on")
	fs.StringVar(&o.key, "tls-key", "", "iSCSI: file (PEM) of the key of --tls-cert (default: that file has it); NVMe/TCP: the pre-shared key, NVMeTLSkey-1:…, or a file with it; turns TLS on (default with --tls: $"+envTLSKey+")")
	fs.StringVar(&o.name, "tls-name", "", "iSCSI: the name in the target's certificate (default: the host in the URL)")
}

// apply completes the configuration of a session; what a URL says wins.
func (o *tlsOptions) apply(c *initiator.Config) {
	if c.TLS == nil {
		if !o.on && o.ca == "" && o.cert == "" && o.key == "" && o.name == "" {
			return
		}
		c.TLS = &initiator.TLS{}
	}
	t := *c.TLS
	t.CA, t.ServerName = first(t.CA, o.ca), first(t.ServerName, o.name)
	if t.Cert == "" {
		t.Cert, t.Key = o.cert, first(t.Key, o.key)
	}
	c.TLS = &t
}

// psk is whether an NVMe host uses TLS.
func (o *tlsOptions) psk() (bool, error) {
	if o.ca != "" || o.cert != "" || o.name != "" {
		return false, errors.New("--tls-ca, --tls-cert and --tls-name are for iscsi://; NVMe/TCP has a pre-shared key: --tls-key")
	}
	return o.on || o.key != "", nil
}
