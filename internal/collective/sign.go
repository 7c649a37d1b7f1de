package collective

import "crypto/ed25519"

// Sign signs with the member's key. The key speaks for the member everywhere, so what is signed begins
// with a line that says what for ("dcol record 1\n"): a signature then means nothing anywhere else.
func (id *Identity) Sign(message []byte) []byte {
	id.mu.Lock()
	key := id.creds.key
	id.mu.Unlock()
	return ed25519.Sign(key, message)
}

// PublicKey is what others verify the member's signatures with: the key in its certificate.
func (id *Identity) PublicKey() ed25519.PublicKey {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.creds.key.Public().(ed25519.PublicKey)
}
