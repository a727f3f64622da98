package registry

import (
	"net/netip"
	"reflect"
	"testing"

	"softiser/config"
	"softiser/target"
)

// Bindings are rules of their own, and do not change who else comes in.
func TestACLRules(t *testing.T) {
	bind := config.Binding{Initiator: "iqn.b", Users: []string{"alice"}}
	net10 := netip.MustParsePrefix("10.0.0.0/8")
	for _, c := range []struct {
		acl  config.ACL
		want target.ACL
	}{
		{config.ACL{}, nil},
		{config.ACL{Initiators: []string{"iqn.a"}}, target.ACL{{Initiator: "iqn.a"}}},
		{config.ACL{Bind: []config.Binding{bind}}, target.ACL{{}, {Initiator: "iqn.b", Users: bind.Users}}},
		{
			config.ACL{Initiators: []string{"iqn.a"}, Networks: []string{"10.0.0.0/8"}, Bind: []config.Binding{bind}},
			target.ACL{{Initiator: "iqn.a", Network: net10}, {Initiator: "iqn.b", Network: net10, Users: bind.Users}},
		},
	} {
		if got, err := acl(&c.acl); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, %v; want %+v", c.acl, got, err, c.want)
		}
	}
}
