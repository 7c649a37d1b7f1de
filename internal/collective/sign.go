package collective

import "crypto/ed25519"

// Sign signs with the member's key. Because the same key signs for many purposes, the message must begin with a
// line that names its purpose ("dcol record 1\n"), so that the signature is valid for nothing else.
func (id *Identity) Sign(message []byte) []byte {
	return ed25519.Sign(id.current().key, message)
}

// SignWithChain is like Sign, but calls message with the chain that belongs to the signing key.
func (id *Identity) SignWithChain(message func(chain [][]byte) []byte) []byte {
	now := id.current()
	return ed25519.Sign(now.key, message(now.cert.Certificate))
}

// PublicKey returns the key in the member's certificate, with which others verify its signatures.
func (id *Identity) PublicKey() ed25519.PublicKey {
	return id.current().key.Public().(ed25519.PublicKey)
}

// Chain returns the certificates with which others identify the signer: DER, the member's own first. See
// Trust.Verify.
func (id *Identity) Chain() [][]byte { return id.current().cert.Certificate }

// current returns our own credentials as last read.
func (id *Identity) current() *own {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.own
}
