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

// maxRequest bounds what a stranger may have us parse; a request of ours has some 200 bytes.
const maxRequest = 8 << 10

// NewKey makes a member's key and writes it to a file only the owner can read. It refuses to overwrite
// one, as whoever loses a key is no longer who it was.
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

// NewRequest asks for a certificate for the key (PKCS #10, RFC 2986), as PEM. The signature proves that
// who asks has the key, which does not leave the host.
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

// SigningRequest is a request whose sender has proved to have the key. Only ParseRequest makes one.
type SigningRequest struct {
	name string
	key  PublicKey
}

// Name is what the sender wants to be called. It is a good name, not one that has been granted.
func (r *SigningRequest) Name() string { return r.name }

// Key is the sender's.
func (r *SigningRequest) Key() PublicKey { return r.key }

// ParseRequest reads and checks what NewRequest wrote. Whatever else the request asks for is ignored:
// the authority decides what a certificate says.
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
