package nvmf

import (
	"softiser/internal/nvme/dhchap"
	"softiser/internal/nvme/tlspsk"
)

// Secret is what one side of DH-HMAC-CHAP proves to know. It does not print itself.
type Secret = dhchap.Secret

// ParseSecret reads a secret as nvme gen-dhchap-key writes it, DHHC-1:…:…: (TP 8006). The
// error does not repeat it.
func ParseSecret(s string) (*Secret, error) { return dhchap.ParseSecret(s) }

// ProofAllowed are the hashes and the Diffie-Hellman groups that DH-HMAC-CHAP may use, the
// best first; none: every one.
type ProofAllowed = dhchap.Allowed

// ProofHash is a hash function of DH-HMAC-CHAP, and ProofGroup a Diffie-Hellman group.
type (
	ProofHash  = dhchap.Hash
	ProofGroup = dhchap.Group
)

// ParseProofAllowed reads the names of hashes and groups as Linux and SPDK write them
// (sha256; null, ffdhe2048).
func ParseProofAllowed(hashes, groups []string) (ProofAllowed, error) {
	return dhchap.ParseAllowed(hashes, groups)
}

// TLSKey is a configured pre-shared key of TLS. It does not print itself.
type TLSKey = tlspsk.Key

// ParseTLSKey reads a key as nvme gen-tls-key writes it, NVMeTLSkey-1:…:…: (NVMe TCP
// Transport 1.1, 3.6.1.5). The error does not repeat it.
func ParseTLSKey(s string) (*TLSKey, error) { return tlspsk.ParseKey(s) }
