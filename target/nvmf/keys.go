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

// TLSKey is a configured pre-shared key of TLS. It does not print itself.
type TLSKey = tlspsk.Key

// ParseTLSKey reads a key as nvme gen-tls-key writes it, NVMeTLSkey-1:…:…: (NVMe TCP
// Transport 1.1, 3.6.1.5). The error does not repeat it.
func ParseTLSKey(s string) (*TLSKey, error) { return tlspsk.ParseKey(s) }
