package rdma

import (
	"context"
	"fmt"
	"net"
	"strings"
)

// Provider is the transport that the queue pairs of a device run over.
type Provider uint8

// Providers.
const (
	// ProviderIWARP is RDMA over TCP; addresses are those of TCP.
	ProviderIWARP Provider = iota
	// ProviderRoCE is RoCE v2, RDMA over UDP port 4791: connections, reliable or not, made by
	// the connection manager of InfiniBand as Linux's rdma_cm does it, and datagrams. The port in an address
	// is that of rdma_cm, a service, and not UDP's. One process at a time can use RoCE on an
	// address, and none where the kernel's rdma_rxe is loaded; see docs/adr/0170-roce-provider.md.
	ProviderRoCE
)

var providerNames = [...]string{"iwarp", "roce"}

// String is the name, as ParseProvider reads it.
func (p Provider) String() string {
	if int(p) < len(providerNames) {
		return providerNames[p]
	}
	return fmt.Sprintf("Provider(%d)", uint8(p))
}

// ParseProvider reads "iwarp" or "roce".
func ParseProvider(s string) (Provider, error) {
	for i, n := range providerNames {
		if s == n {
			return Provider(i), nil
		}
	}
	return 0, invalid("provider %q: want %s", s, strings.Join(providerNames[:], " or "))
}

// Network is the network that Dial and Device.Listen take for the provider.
func (p Provider) Network() string {
	if p == ProviderRoCE {
		return "roce"
	}
	return "tcp"
}

// provider is what a device needs of its transport.
type provider interface {
	// attr fills in what is the provider's own.
	attr(*DeviceAttr)
	// attach makes the engine of a new queue pair, and its number.
	attach(qp *QP) error
	// retire is told that a queue pair has been closed.
	retire(qp *QP)
	dial(ctx context.Context, network, addr string, qp *QP, p *ConnParams) error
	listen(network, addr string, cfg *ListenConfig) (acceptor, error)
	info(qp *QP) ConnInfo
	extensions(qp *QP) bool
	// close is for a device without objects.
	close()
}

// acceptor is the transport's part of a Listener.
type acceptor interface {
	accept(ctx context.Context) (request, error)
	addr() net.Addr
	close() error
}

// request is the transport's part of a ConnRequest.
type request interface {
	private() []byte
	reads() (ird, ord int, told bool)
	qpType() QPType
	local() net.Addr
	remote() net.Addr
	accept(ctx context.Context, qp *QP, p *ConnParams) error
	reject(private []byte) error
}

// wants is an error when the device has another provider.
func (d *Device) wants(p Provider, what string) error {
	if d.cfg.Provider != p {
		return invalid("%s needs a device of provider %v, this one is of %v", what, p, d.cfg.Provider)
	}
	return nil
}
