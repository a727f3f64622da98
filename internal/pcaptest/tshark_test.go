package pcaptest

import (
	"slices"
	"testing"
)

func TestOnFreePorts(t *testing.T) {
	const tables = "ethertype\t57000\tip\ntcp.port\t3260\tiscsi\ntcp.port\t57000\tirc\nudp.port\t44818\tenip\ntcp.port\t44321\tpcp\ntcp.port\n"
	if got := onFreePorts(tables); !slices.Equal(got, []string{"irc", "pcp"}) {
		t.Error(got)
	}
}
