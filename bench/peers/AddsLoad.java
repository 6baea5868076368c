import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Adds to a ledger of E3 Qw3 Qa2 through BookKeeper's own client, as a broker of Pulsar's makes
 * them (version 2 of the protocol, CRC-32C), so many outstanding all the time.
 *
 * Arguments: ZOOKEEPER_HOST:PORT ENTRY_BYTES OUTSTANDING WARM_SECONDS SECONDS. Says "adds N of
 * TOTAL in MS ms, us: P50 P99 P99.9": N after the warm-up, TOTAL with it.
 */
public final class AddsLoad {
    /** Buckets of an eighth of a power of two, at most 9 % wide. */
    private static final int STEPS = 8;

    private final AtomicLongArray tookNs = new AtomicLongArray(64 * STEPS);
    private final AtomicInteger failed = new AtomicInteger();
    private volatile boolean counted;

    public static void main(String[] args) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + args[0] + "/ledgers");
        conf.setUseV2WireProtocol(true);
        conf.setThrottleValue(0);
        try (BookKeeper client = new BookKeeper(conf);
                LedgerHandle ledger =
                        client.createLedger(3, 3, 2, DigestType.CRC32C, "bench".getBytes())) {
            new AddsLoad().run(ledger, Integer.parseInt(args[1]), Integer.parseInt(args[2]),
                    Long.parseLong(args[3]), Long.parseLong(args[4]));
        }
        System.exit(0);
    }

    private void run(LedgerHandle ledger, int bytes, int outstanding, long warmS, long seconds)
            throws Exception {
        byte[] entry = new byte[bytes];
        Semaphore free = new Semaphore(outstanding);
        long begin = System.nanoTime() + warmS * 1_000_000_000L;
        long end = begin + seconds * 1_000_000_000L;
        long total = 0;
        long warm = 0;
        for (long now = 0; now < end; now = System.nanoTime()) {
            free.acquire();
            if (!counted && now >= begin) {
                counted = true;
                warm = total;
            }
            long sent = System.nanoTime();
            ledger.asyncAddEntry(entry, (code, handle, id, context) -> {
                if (code != BKException.Code.OK) {
                    failed.set(code);
                } else if (counted) {
                    tookNs.incrementAndGet(bucket(System.nanoTime() - sent));
                }
                free.release();
            }, null);
            total++;
        }
        free.acquire(outstanding);
        long took = System.nanoTime() - begin;
        if (failed.get() != 0) {
            throw new IllegalStateException("an add failed: " + failed.get());
        }
        System.out.printf("adds %d of %d in %d ms, us: %.1f %.1f %.1f%n", total - warm, total,
                took / 1_000_000, percentile(0.5), percentile(0.99), percentile(0.999));
    }

    private static int bucket(long ns) {
        return (int) (Math.log(Math.max(ns, 1)) / Math.log(2) * STEPS);
    }

    private double percentile(double share) {
        long all = 0;
        for (int i = 0; i < tookNs.length(); i++) {
            all += tookNs.get(i);
        }
        long left = (long) Math.ceil(all * share);
        for (int i = 0; i < tookNs.length(); i++) {
            left -= tookNs.get(i);
            if (left <= 0) {
                return Math.pow(2, (i + 1.0) / STEPS) / 1000;
            }
        }
        return 0;
    }
}
