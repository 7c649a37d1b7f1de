package collective

import "crypto/ed25519"

// Sign signs with the member's key. The key speaks for the member everywhere, so what is signed begins
// with a line that says what for ("dcol record 1\n"): a signature then means nothing anywhere else.
func (id *Identity) Sign(message []byte) []byte {
	return ed25519.Sign(id.current().key, message)
}

// SignWithChain signs, as Sign does, what message makes of Chain as it is with that key.
func (id *Identity) SignWithChain(message func(chain [][]byte) []byte) []byte {
	now := id.current()
	return ed25519.Sign(now.key, message(now.cert.Certificate))
}

// PublicKey is what others verify the member's signatures with: the key in its certificate.
func (id *Identity) PublicKey() ed25519.PublicKey {
	return id.current().key.Public().(ed25519.PublicKey)
}

// Chain is what others need to know whose signature it is: DER, the member's own certificate first. See
// Trust.Verify.
func (id *Identity) Chain() [][]byte { return id.current().cert.Certificate }

// current is our own credentials as last read.
func (id *Identity) current() *own {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.own
}
