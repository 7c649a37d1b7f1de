package wireguard

import (
	"crypto/ecdh"
	"crypto/rand"
	"fmt"
)

// NewKey returns a new key pair.
func NewKey() (private, public [32]byte, err error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return private, public, fmt.Errorf("make a WireGuard key: %w", err)
	}
	return [32]byte(key.Bytes()), [32]byte(key.PublicKey().Bytes()), nil
}

// PublicKey returns the public key of a private one.
func PublicKey(private [32]byte) ([32]byte, error) {
	key, err := ecdh.X25519().NewPrivateKey(private[:])
	if err != nil {
		return [32]byte{}, fmt.Errorf("read the private key: %w", err)
	}
	return [32]byte(key.PublicKey().Bytes()), nil
}
