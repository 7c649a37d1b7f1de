package collective

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
)

// maxRequest limits the size of strangers' requests. Ours have about 200 bytes.
const maxRequest = 8 << 10

// NewKey creates a member's key in a file that only the owner can read. It refuses to overwrite an existing one,
// because a member that loses its key loses its identity.
func NewKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	if err := createKey(path, key); err != nil {
		return nil, err
	}
	return key, nil
}

// ReadKey reads a key that NewKey wrote.
func ReadKey(path string) (ed25519.PrivateKey, error) {
	return readKey(path, "remove it, so that dcol join makes a new one")
}

// NewRequest returns a request for a certificate for the key (PKCS #10, RFC 2986), as PEM. Its signature proves
// that the sender has the key, which does not leave the host.
func NewRequest(key ed25519.PrivateKey, name string) ([]byte, error) {
	if err := CheckName(name); err != nil {
		return nil, fmt.Errorf("request a certificate: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		return nil, fmt.Errorf("request a certificate for %s: %w", name, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: der}), nil
}

// SigningRequest is a request whose sender has proved that it has the key. Only ParseRequest creates one.
type SigningRequest struct {
	name string
	key  PublicKey
}

// Name returns the requested name. It is valid, but not granted yet.
func (r *SigningRequest) Name() string { return r.name }

// Key returns the sender's key.
func (r *SigningRequest) Key() PublicKey { return r.key }

// ParseRequest parses and verifies a request from NewRequest. It ignores all other fields of the request,
// because the authority decides on the content of a certificate.
func ParseRequest(data []byte) (*SigningRequest, error) {
	if len(data) > maxRequest {
		return nil, fmt.Errorf("certificate request: it has %d bytes, but at most %d are allowed", len(data), maxRequest)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != pemRequest {
		return nil, errors.New("certificate request: holds no PEM block " + pemRequest)
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	key, ok := req.PublicKey.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("certificate request: for a %v key; dcol uses ed25519", req.PublicKeyAlgorithm)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: its signature is wrong, so its sender may not have the key: %w", err)
	}
	if err := CheckName(req.Subject.CommonName); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return &SigningRequest{name: req.Subject.CommonName, key: PublicKey(key)}, nil
}
