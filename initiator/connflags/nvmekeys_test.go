package connflags

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"softiser/initiator/nvmf"
)

func TestNVMeKeys(t *testing.T) {
	const chap, tls = "DHHC-1:00:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:", "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(chap+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		env  map[string]string
		want nvmf.Keys
		err  string
	}{
		{nil, nil, nvmf.Keys{}, ""},
		{[]string{"--dhchap-secret", chap, "--tls-key", tls}, nil, nvmf.Keys{Secret: chap, TLSKey: tls}, ""},
		{[]string{"--dhchap-secret", file, "--dhchap-ctrl-secret", file}, nil, nvmf.Keys{Secret: chap, CtrlSecret: chap}, ""},
		{[]string{"--dhchap-secret", chap, "--dhchap-hashes=sha512,sha384", "--dhchap-dhgroups=ffdhe3072"}, nil, nvmf.Keys{Secret: chap, Hashes: []string{"sha512", "sha384"}, DHGroups: []string{"ffdhe3072"}}, ""},
		{[]string{"--tls"}, map[string]string{envTLSKey: tls, envDHCHAP: file}, nvmf.Keys{Secret: chap, TLSKey: tls}, ""},
		{nil, map[string]string{envTLSKey: tls}, nvmf.Keys{}, ""},
		{[]string{"--tls"}, nil, nvmf.Keys{}, "--tls needs a key"},
		{[]string{"--dhchap-secret", file + "x"}, nil, nvmf.Keys{}, "--dhchap-secret"},
		{[]string{"--tls-key", file + "x"}, nil, nvmf.Keys{}, file + "x"},
		{[]string{"--tls-key", strings.ToLower(tls)}, nil, nvmf.Keys{}, "begins with DHHC-1: or NVMeTLSkey-1:"},
	} {
		for _, name := range []string{envTLSKey, envDHCHAP, envDHCHAPCtrl} {
			t.Setenv(name, tt.env[name])
		}
		var o keyOptions
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.register(fs)
		if err := fs.Parse(tt.args); err != nil {
			t.Fatal(err)
		}
		var got nvmf.Keys
		err := o.apply(&got)
		if tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) || tt.err == "" && (err != nil || !reflect.DeepEqual(got, tt.want)) {
			t.Errorf("%v %v: %+v, %v", tt.args, tt.env, got, err)
		}
		if err != nil && (strings.Contains(strings.ToLower(err.Error()), strings.ToLower(tls)) || strings.Contains(err.Error(), "CHAP secret")) {
			t.Errorf("a key, or another thing, is named: %v", err)
		}
	}
}
