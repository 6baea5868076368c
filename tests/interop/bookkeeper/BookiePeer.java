import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/**
 * Uses a bookie the way applications do, through BookKeeper's own client, and says what worked.
 *
 * Arguments: ZooKeeper's address, the ledgers root, "v2" or "v3". Each step prints "ok NAME"; the
 * first that fails ends the program with its stack trace and status 1.
 */
public final class BookiePeer {
    private static final byte[] PASSWORD = "peer".getBytes();
    private static final byte[] OTHER_PASSWORD = "other".getBytes();

    private final BookKeeper client;
    private final boolean v2;

    private BookiePeer(BookKeeper client, boolean v2) {
        this.client = client;
        this.v2 = v2;
    }

    public static void main(String[] args) throws Exception {
        boolean v2 = args[2].equals("v2");
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + args[0] + args[1]);
        conf.setUseV2WireProtocol(v2);
        conf.setBatchReadEnabled(true);
        conf.setExplictLacInterval(v2 ? 0 : 100);
        conf.setAddEntryTimeout(10);
        conf.setReadEntryTimeout(10);
        try (BookKeeper client = new BookKeeper(conf)) {
            new BookiePeer(client, v2).run();
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private void run() throws Exception {
        for (DigestType type : DigestType.values()) {
            addAndRead(type);
        }
        pipelined();
        largest();
        emptyLedger();
        fencing();
        wrongPassword();
        if (v2) {
            batchRead(); // the client has it in version 2 only
        }
        tailing();
        held();
        info();
        delete();
    }

    private static void ok(String name) {
        System.out.println("ok " + name);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static byte[] payload(int i) {
        byte[] bytes = new byte[(i * 37) % 3000];
        Arrays.fill(bytes, (byte) i);
        return bytes;
    }

    private LedgerHandle create(DigestType type) throws Exception {
        return client.createLedger(1, 1, 1, type, PASSWORD);
    }

    private void checkEntries(LedgerHandle ledger, int count) throws Exception {
        check(ledger.getLastAddConfirmed() == count - 1, "last " + ledger.getLastAddConfirmed());
        Enumeration<LedgerEntry> entries = ledger.readEntries(0, count - 1);
        int i = 0;
        while (entries.hasMoreElements()) {
            LedgerEntry entry = entries.nextElement();
            check(entry.getEntryId() == i, "entry id " + entry.getEntryId());
            check(Arrays.equals(entry.getEntry(), payload(i)), "payload of entry " + i);
            i++;
        }
        check(i == count, "read " + i + " of " + count);
    }

    private void addAndRead(DigestType type) throws Exception {
        LedgerHandle writer = create(type);
        for (int i = 0; i < 20; i++) {
            check(writer.addEntry(payload(i)) == i, "entry id");
        }
        checkEntries(writer, 20);
        writer.close();
        LedgerHandle reader = client.openLedger(writer.getId(), type, PASSWORD);
        checkEntries(reader, 20);
        reader.close();
        ok("add and read, " + type);
    }

    private void pipelined() throws Exception {
        LedgerHandle writer = create(DigestType.CRC32C);
        int count = 5000;
        CountDownLatch left = new CountDownLatch(count);
        AtomicInteger failed = new AtomicInteger();
        for (int i = 0; i < count; i++) {
            writer.asyncAddEntry(payload(i), (rc, ledger, entryId, context) -> {
                if (rc != 0) {
                    failed.incrementAndGet();
                }
                left.countDown();
            }, null);
        }
        check(left.await(30, TimeUnit.SECONDS), "adds without an answer: " + left.getCount());
        check(failed.get() == 0, failed.get() + " adds failed");
        checkEntries(writer, count);
        writer.close();
        ok("5000 adds under way at once");
    }

    private void largest() throws Exception {
        LedgerHandle writer = create(DigestType.CRC32C);
        byte[] large = new byte[4 * 1024 * 1024];
        Arrays.fill(large, (byte) 7);
        writer.addEntry(large);
        byte[] found = writer.readEntries(0, 0).nextElement().getEntry();
        check(Arrays.equals(found, large), "a large entry came back changed");
        writer.close();
        ok("an entry of 4 MiB");
    }

    private void emptyLedger() throws Exception {
        LedgerHandle writer = create(DigestType.CRC32C);
        LedgerHandle recovered = client.openLedger(writer.getId(), DigestType.CRC32C, PASSWORD);
        check(recovered.getLastAddConfirmed() == -1, "an empty ledger has entries");
        check(recovered.isClosed(), "recovery left the ledger open");
        ok("recovery of an empty ledger");
    }

    private void fencing() throws Exception {
        LedgerHandle writer = create(DigestType.CRC32C);
        for (int i = 0; i < 10; i++) {
            writer.addEntry(payload(i));
        }
        LedgerHandle recovered = client.openLedger(writer.getId(), DigestType.CRC32C, PASSWORD);
        checkEntries(recovered, 10);
        try {
            writer.addEntry(payload(10));
            throw new AssertionError("a fenced writer went on");
        } catch (BKException.BKLedgerFencedException | BKException.BKLedgerClosedException fenced) {
            ok("recovery fences the writer");
        }
    }

    private void wrongPassword() throws Exception {
        LedgerHandle writer = create(DigestType.CRC32C);
        writer.addEntry(payload(1));
        try {
            client.openLedger(writer.getId(), DigestType.CRC32C, OTHER_PASSWORD);
            throw new AssertionError("another password opened the ledger");
        } catch (BKException refused) {
            ok("another password is refused");
        }
        writer.close();
    }

    private void batchRead() throws Exception {
        LedgerHandle writer = create(DigestType.CRC32C);
        for (int i = 0; i < 50; i++) {
            writer.addEntry(payload(i));
        }
        List<Integer> sizes = new ArrayList<>();
        Enumeration<LedgerEntry> entries = writer.batchReadEntries(5, 20, 1024 * 1024);
        int i = 5;
        while (entries.hasMoreElements()) {
            byte[] found = entries.nextElement().getEntry();
            check(Arrays.equals(found, payload(i)), "payload of entry " + i);
            sizes.add(found.length);
            i++;
        }
        check(sizes.size() == 20, "a batch read of 20 gave " + sizes.size());
        writer.close();
        ok("batch read");
    }

    private void tailing() throws Exception {
        LedgerHandle writer = create(DigestType.CRC32C);
        writer.addEntry(payload(0));
        LedgerHandle reader =
            client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, PASSWORD);
        writer.addEntry(payload(1));
        check(reader.readLastConfirmed() >= 0, "the last confirmed did not move");
        if (v2) {
            ok("tailing by reading the last confirmed");
            writer.close();
            return;
        }
        long explicit = -1;
        for (int tries = 0; tries < 50 && explicit < 1; tries++) {
            Thread.sleep(50);
            explicit = reader.readExplicitLastConfirmed();
        }
        check(explicit == 1, "explicit last confirmed " + explicit);
        long begin = System.nanoTime();
        new Thread(() -> {
            try {
                Thread.sleep(300);
                writer.addEntry(payload(2));
                writer.addEntry(payload(3));
            } catch (Exception failure) {
                failure.printStackTrace();
            }
        }).start();
        try (LastConfirmedAndEntry polled =
            reader.readLastAddConfirmedAndEntryAsync(2, 5000, true).get(20, TimeUnit.SECONDS)) {
            long waitedMs = (System.nanoTime() - begin) / 1_000_000;
            check(polled.getLastAddConfirmed() >= 2, "polled " + polled.getLastAddConfirmed());
            check(polled.hasEntry(), "the long poll brought no entry");
            check(Arrays.equals(polled.getEntry().getEntryBytes(), payload(2)), "polled payload");
            check(waitedMs < 4000, "the long poll waited " + waitedMs + " ms");
        }
        writer.close();
        ok("explicit LAC and long poll");
    }

    private void held() throws Exception {
        LedgerHandle writer = create(DigestType.CRC32C);
        for (int i = 0; i < 30; i++) {
            writer.addEntry(payload(i));
        }
        writer.close();
        BookKeeperAdmin admin = new BookKeeperAdmin(client);
        BookieId bookie = admin.getAvailableBookies().iterator().next();
        if (!v2) {
            AvailabilityOfEntriesOfLedger held =
                admin.asyncGetListOfEntriesOfLedger(bookie, writer.getId())
                    .get(10, TimeUnit.SECONDS);
            check(held.getTotalNumOfAvailableEntries() == 30, "holds "
                + held.getTotalNumOfAvailableEntries());
            check(held.isEntryAvailable(29) && !held.isEntryAvailable(30), "which entries");
            ok("list of entries");
        }
    }

    private void info() throws Exception {
        Map<BookieId, ?> info = client.getBookieInfo();
        check(info.size() == 1, "info of " + info.size() + " bookies");
        ok("bookie info");
    }

    private void delete() throws Exception {
        LedgerHandle writer = create(DigestType.CRC32C);
        writer.addEntry(payload(1));
        writer.close();
        client.deleteLedger(writer.getId());
        ok("delete");
    }
}
